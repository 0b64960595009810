"""Recipes with a critic on verl: rows are paid rewards, the configuration has a value model, options fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.types import Row, Segment
from agentlightning.types.work import PolicyFolder
from agl_verl.config.critic import SAYS, CriticError
from agl_verl.config.options import OptionError, overrides, read_options
from agl_verl.driver import VerlDriver
from agl_verl.ppo import PPO
from agl_verl.rows import step, train_row
from agl_verl.supported_fields import SUPPORTED_FIELDS, Refused, plain, refuse
from plugins.verl.tests.test_driver import Steps, life, policy, python  # noqa: F401 - fixtures

RECIPE = PPO()


def row(*calls: tuple[int, int, float], n: int = 8) -> Row:
    """A row of ``n`` tokens with calls of (start, end, return), each token of weight 0.1."""
    segments = [
        Segment(call_id=f"c{i}", start=a, end=b, advantage=value) for i, (a, b, value) in enumerate(calls)
    ]
    mask = [int(any(s.start <= t < s.end for s in segments)) for t in range(n)]
    advantages = [next((s.advantage for s in segments if s.start <= t < s.end), 0.0) for t in range(n)]
    return Row(row_id="ro-1/0", rollout_id="ro-1", policy="policy", token_ids=[*range(10, 10 + n)], mask=mask,
               advantages=advantages, logprobs=[-1.0 * m for m in mask], weights=[0.1 * m for m in mask],
               versions=[0 if m else -1 for m in mask], segments=segments)  # fmt: skip


def lines(recipe: agl.Recipe = RECIPE, **options: Any) -> dict[str, str]:
    made = overrides("some/policy", recipe, 7, read_options(options), "some/folder")
    return {key.lstrip("+"): value for key, _, value in (line.partition("=") for line in made)}


def test_a_row_is_paid_at_the_last_token_of_each_call() -> None:
    found = train_row(row((2, 4, 1.0), (6, 8, 0.75)), RECIPE)
    columns = found.columns()
    assert found.prompt == [10, 11] and columns.mask.tolist() == [1, 1, 0, 0, 1, 1]
    assert columns.carrier.tolist() == [0.0, 0.25, 0.0, 0.0, 0.0, 0.75]
    assert columns.weights.tolist() == [0.1, 0.1, 0.0, 0.0, 0.1, 0.1]


def test_minibatches_scale_weights_and_no_rewards() -> None:
    made = step([row((2, 4, 1.0))] * 4, PPO(minibatches=2, epochs=3))
    assert (made.share, made.optimizer_steps) == (2, 6)
    assert {tuple(one.columns().weights[:2]) for one in made.rows} == {(0.2, 0.2)}
    assert {tuple(one.columns().carrier[:2]) for one in made.rows} == {(0.0, 1.0)}


@pytest.mark.parametrize(("rows", "steps"), [
    ([], 0), ([row((2, 3, 1.0))], 0), ([row((2, 4, 0.0))], 1), ([row((2, 3, 0.0)), row((2, 3, 0.0))], 1),
])  # fmt: skip
def test_a_gradient_needs_two_tokens_and_no_reward(rows: list[Row], steps: int) -> None:
    assert step(rows, RECIPE).optimizer_steps == steps
    flat = agl.GRPO()
    assert step([row((2, 4, 0.0))], flat).optimizer_steps == 0


def test_its_loss_is_ours_and_its_estimator_verls() -> None:
    assert not plain(RECIPE) and {"critic", "lam", *SAYS} <= SUPPORTED_FIELDS
    found = lines(PPO(gamma=0.99, lam=0.9, epochs=2, minibatches=3), critic_lr=0.002, lr=0.001)
    assert found["algorithm.adv_estimator"] == "gae" and found["critic.enable"] == "True"
    assert (found["algorithm.gamma"], found["algorithm.lam"]) == ("0.99", "0.9")
    assert (found["critic.optim.lr"], found["actor_rollout_ref.actor.optim.lr"]) == ("0.002", "0.001")
    assert found["critic.loss_agg_mode"] == "token-mean"  # the policy's would be inherited
    assert (found["critic.ppo_epochs"], found["critic.shuffle"]) == ("2", "False")
    assert found["critic.model.path"] == "some/policy" and found["critic.strategy"] == "fsdp2"
    assert lines(lr=0.5)["critic.optim.lr"] == "0.5"


def test_without_a_critic_nothing_is_said_of_one() -> None:
    assert not [key for key in lines(agl.GRPO()) if key.startswith("critic")]
    assert lines(agl.GRPO())["algorithm.adv_estimator"] == "agl"
    assert "critic.fsdp.model_dtype" not in lines(device="cuda")


@pytest.mark.parametrize(("options", "said"), [
    ({"critic_lr": 0.1}, "critic_lr: recipe 'grpo' has no critic"), ({"critic_warmup": 3}, "critic_warmup"),
])  # fmt: skip
def test_options_that_nobody_would_read_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CriticError, match=said):
        VerlDriver(PolicyFolder(tmp_path, options=options), agl.GRPO())
    VerlDriver(PolicyFolder(tmp_path, options=options), RECIPE)


@pytest.mark.parametrize("options", [{"critic_lr": 0.0}, {"critic_warmup": -1}])
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="critic_warmup must be 0 or more, critic_lr above 0"):
        read_options(options)


@pytest.mark.parametrize("line", [
    "algorithm.lam=0.5", "+algorithm.gamma=0.5", "critic.enable=False", "critic.ppo_mini_batch_size=8",
    "trainer.critic_warmup=9",
])  # fmt: skip
def test_lines_that_belong_to_recipe_or_options_are_refused(line: str) -> None:
    with pytest.raises(OptionError, match="overrides"):
        read_options({"overrides": [line]})
    read_options({"overrides": ["critic.cliprange_value=0.2"]})


def test_a_recipe_that_credit_and_a_critic_would_both_make_is_refused() -> None:
    with pytest.raises(Refused, match=r"on verl: recipe\.baseline = 'group' with a critic"):
        refuse(agl.GRPO(critic=True))
    refuse(PPO(loss_aggregation="rollout", kl=0.1, loss="reinforce"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="verl runs on Linux")
@pytest.mark.slow
async def test_first_steps_can_be_the_critics_alone(policy: Path, python: str, tmp_path: Path):  # noqa: F811
    options = {"python": python, "save_every": 1, "critic_warmup": 2}
    job = Steps(tmp_path, steps=3)
    await life(VerlDriver(PolicyFolder(policy, options=options), RECIPE), job)
    assert [report.metrics["optimizer_steps"] for report in job.reports] == [0.0, 0.0, 1.0]
