"""verl's critic: a value model from a seed, and advantages that are GAE's by the book."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch
from transformers import AutoConfig
from verl.trainer.ppo import core_algos
from verl.utils.config import omega_conf_to_dataclass

import agentlightning as agl
from agl_local.policy.folder import load_policy, save_policy
from agl_verl.config.options import overrides, read_options
from agl_verl.inside.learning import gap
from agl_verl.inside.learning.critic import load, own_loader, valued as valued_engine
from agl_verl.inside.learning.loss import RecipeLoss
from agl_verl.inside.main import configuration
from agl_verl.ppo import PPO
from agl_verl.rows import WEIGHTS
from plugins.local.tests.engine_fixtures import small_policy
from plugins.verl.tests.inside.test_loss import batch, nested


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the driver hears of a step's rows."""
    found: list[list[str]] = []

    def tell(keys: list[str], step: Any) -> bool:
        found.append(keys)
        return False

    monkeypatch.setattr(gap, "tell", tell)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_policy(small_policy(), tmp_path / "policy")


def valued(folder: Path, seed: int) -> Any:
    config = AutoConfig.from_pretrained(folder, attn_implementation="sdpa", num_labels=1)
    return load(str(folder), torch.float32, config, False, seed)


@pytest.mark.filterwarnings("ignore")
def test_a_value_model_is_the_policy_with_a_head_from_the_seed(folder: Path) -> None:
    before = torch.get_rng_state()
    one, again, other = (valued(folder, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.score.weight, again.score.weight) and one.score.weight.abs().sum() > 0
    assert not torch.equal(one.score.weight, other.score.weight)
    policy = load_policy(folder).model
    assert torch.equal(one.model.embed_tokens.weight, policy.model.embed_tokens.weight)
    ids = torch.randint(0, 20, (1, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        values = one.eval()(input_ids=ids).logits
        wanted = policy.hidden(ids) @ one.score.weight.T + one.score.bias
    torch.testing.assert_close(values, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_verl_loads_it_this_way_and_no_other_model(folder: Path) -> None:
    import verl.utils.model as models

    theirs = models.load_valuehead_model
    config = AutoConfig.from_pretrained(folder, attn_implementation="sdpa", num_labels=1)
    with own_loader(3):
        found = models.load_valuehead_model(
            local_path=str(folder), torch_dtype=torch.float32, model_config=config, trust_remote_code=False
        )
    assert torch.equal(found.score.weight, valued(folder, 3).score.weight)
    assert models.load_valuehead_model is theirs
    with pytest.raises(ZeroDivisionError), own_loader(3):
        raise ZeroDivisionError
    assert models.load_valuehead_model is theirs


def test_a_step_of_no_token_does_not_move_a_critic() -> None:
    class Engine:
        """Stands for verl's: says what it was asked."""

        asked: list[str] = []

        def forward_backward_batch(self, data: dict[str, int]) -> str:
            return "outputs"

        def optimizer_step(self) -> float:
            self.asked.append("step")
            return 3.0

        def optimizer_zero_grad(self) -> None:
            self.asked.append("zero")

    made = valued_engine(Engine)()
    for tokens, norm in ((0, 0.0), (5, 3.0), (0, 0.0)):
        assert made.forward_backward_batch({"batch_num_tokens": tokens, "advantages": ()}) == "outputs"
        assert made.optimizer_step() == norm
    assert Engine.asked == ["zero", "step", "zero"]


def by_the_book(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """``sum over l of (gamma lam)^l delta_(t+l)`` (arXiv 1506.02438, equation 16), term by term."""
    following = [*values, 0.0][1:]
    deltas = [r + gamma * v1 - v for r, v, v1 in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.0, 0.0)])
def test_gaps_take_no_time_and_the_step_is_whitened(gamma: float, lam: float, told: list[Any]) -> None:
    draw = random.Random(5)
    masks = [[1, 1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0, 0]]  # the last is padding
    mask = torch.tensor(masks)
    rewards = torch.tensor([[draw.gauss(0, 1) * on for on in row] for row in masks])
    values = torch.tensor([[draw.gauss(0, 1) for _ in row] for row in masks])
    advantages, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    raw = []
    for r, v, m, found in zip(rewards, values, mask.bool(), returns, strict=True):
        wanted = by_the_book(r[m].tolist(), v[m].tolist(), gamma, lam)
        torch.testing.assert_close(found[m], v[m] + torch.tensor(wanted))
        raw += wanted
    every = torch.tensor(raw)
    torch.testing.assert_close(
        advantages[mask.bool()], (every - every.mean()) / every.std(), atol=1e-5, rtol=1e-5
    )
    assert len(told) == 1


def test_what_has_no_spread_is_not_whitened(told: list[Any]) -> None:
    rewards, values = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.5, 0.5]])
    for mask, returns in (([[0, 1]], [[0.0, 2.0]]), ([[0, 0]], [[0.0, 0.0]])):
        found = core_algos.compute_gae_advantage_return(rewards, values, torch.tensor(mask), 1.0, 1.0)
        assert torch.equal(found[0], torch.zeros(1, 2)) and torch.equal(found[1], torch.tensor(returns))
    with pytest.raises(ValueError, match="sum of the mask is one"):  # verl's own
        core_algos.compute_gae_advantage_return.__wrapped__(rewards, values, torch.tensor([[0, 1]]), 1.0, 1.0)
    assert len(told) == 2


def test_credits_weights_meet_the_advantages_in_the_loss() -> None:
    totals = []
    for recipe in (PPO(), agl.GRPO()):
        model, data, _ = batch()
        advantages = [torch.randn(len(row), generator=torch.Generator().manual_seed(len(row)))
                      for row in data["advantages"].unbind()]  # fmt: skip
        if not recipe.critic:  # then weights are in them
            rows = zip(advantages, data[WEIGHTS].unbind(), strict=True)
            advantages = [one * weights[: len(one)] for one, weights in rows]
        data["advantages"] = nested(advantages)
        total, _ = RecipeLoss(recipe.model_dump())(model_output=model, data=data)
        totals.append(total.item())
    assert totals[0] == pytest.approx(totals[1], rel=1e-5) and abs(totals[0]) > 0.01


def test_the_configuration_is_one_that_verl_takes(folder: Path) -> None:
    options = read_options({"critic_lr": 0.002, "max_len": 512, "micro_batch_tokens": 512})
    config = configuration(overrides(str(folder), PPO(epochs=2), 7, options, str(folder)))
    critic = omega_conf_to_dataclass(config.critic)
    assert (critic.loss_agg_mode, critic.ppo_epochs, critic.optim.lr) == ("token-mean", 2, 0.002)
    assert (critic.engine.strategy, critic.engine.seed, critic.engine.use_dynamic_bsz) == ("fsdp2", 7, True)
    assert critic.ppo_infer_max_token_len_per_gpu == 512
    assert config.algorithm.adv_estimator == "gae"
