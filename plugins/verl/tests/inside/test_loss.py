"""The recipe's loss on verl's tensors is agl-local's over the rows. Needs verl: runs in its environment."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

import agentlightning as agl
from agl_local.training.loss import Terms, policy_loss
from agl_verl.inside.learning.gap import measure
from agl_verl.inside.learning.loss import RecipeLoss
from agl_verl.rows import OFF_POLICY, SEGMENTS, STALE, WEIGHTS

LENGTHS = [(3, [1, 1, 0, 1]), (2, [1, 0, 1, 1, 1, 1]), (5, [1]), (7, [0])]
"""Prompt length and mask of each row; the last one is verl's padding, whose own fields are another row's."""
CALLS = [[0, 0, -1, 1], [0, -1, 1, 1, 1, 2], [0], [0, 0, -1, 1]]
LATE = [[1, 1, 0, 0], [0, 0, 0, 1, 1, 0], [1], [1, 1, 0, 0]]
"""Tokens of an older version."""

OFF = [[0, 1, 0, 0], [1, 0, 0, 1, 0, 0], [0], [0, 1, 0, 0]]
"""Tokens that were sampled otherwise than the policy; one of each kind of age."""

RECIPES = [
    agl.GRPO(kl=0.3, entropy=0.02),
    agl.GRPO(ratio_level="sequence", clip_low=0.05, clip_high=0.1),
    agl.GRPO(ratio_level="sequence", kl=0.1),
    agl.GRPO(loss="reinforce"),
    agl.CISPO(),
    agl.GRPO(kl=0.2, clip_ratio_c=1.05),
    agl.GRPO(),
    agl.GRPO(off_policy_cap=0.8),
    agl.GRPO(max_staleness=1),
    agl.GRPO(max_staleness=1, importance_cap=1.1),
    agl.GRPO(max_staleness=1, importance_cap=0.9, ratio_level="sequence", kl=0.1),
]


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch() -> tuple[dict[str, Any], TensorDict, torch.Tensor]:
    """A micro-batch as a worker gets it: verl's own fields, ours, and what the model computed."""
    draw = torch.Generator().manual_seed(3)

    def noise(n: int, scale: float = 0.3) -> torch.Tensor:
        return torch.randn(n, generator=draw) * scale

    masks = [torch.tensor(mask) for _, mask in LENGTHS]
    size = [len(mask) for mask in masks]
    own = [*size[:3], size[0]]  # the padding row has the first row's copy
    weights = [torch.rand(n, generator=draw) + 0.1 for n in own]
    carrier = [w * noise(len(w), 2.0) for w in weights[:3]] + [torch.zeros(1)]
    logp = torch.cat([noise(p + n) - 1 for (p, _), n in zip(LENGTHS, size, strict=True)]).requires_grad_()
    entropy = torch.rand(len(logp), generator=draw, requires_grad=True)
    whole = torch.tensor([0, *(p + n for (p, _), n in zip(LENGTHS, size, strict=True))]).cumsum(0)
    fields = {
        "prompts": nested([torch.ones(p, dtype=torch.long) for p, _ in LENGTHS]),
        "responses": nested([torch.ones(n, dtype=torch.long) for n in size]),
        "response_mask": nested(masks),
        "advantages": nested([c * m for c, m in zip(carrier, masks, strict=True)]),
        "old_log_probs": nested([noise(n) - 1 for n in size]),
        "rollout_log_probs": nested([noise(n) - 1 for n in size]),
        "ref_log_prob": nested([noise(n) - 1 for n in size]),
        WEIGHTS: nested(weights),
        SEGMENTS: nested([torch.tensor(calls) for calls in CALLS]),
        STALE: nested([torch.tensor(late) for late in LATE]),
        OFF_POLICY: nested([torch.tensor(off) for off in OFF]),
    }
    data = TensorDict(fields, batch_size=[len(LENGTHS)])
    tu.assign_non_tensor(data, dp_size=2)
    model = {"log_probs": torch.nested.nested_tensor_from_jagged(logp, whole),
             "entropy": torch.nested.nested_tensor_from_jagged(entropy, whole)}  # fmt: skip
    return model, data, logp


def expected(
    recipe: agl.Recipe, model: dict[str, Any], data: TensorDict, corrected: bool = False
) -> torch.Tensor:
    """The same by hand: token by token, row by row."""
    names = ("logp", "entropy", "old", "proximal", "late", "off", "ref", "w", "a", "call")
    found: dict[str, list[Any]] = {name: [] for name in names}
    for i, (prompt, mask) in enumerate(LENGTHS):
        for t in (t for t, on in enumerate(mask) if on):
            weight = data[WEIGHTS][i][t]
            found["logp"].append(model["log_probs"][i][prompt + t - 1])  # what predicts the token
            found["entropy"].append(model["entropy"][i][prompt + t - 1])
            found["proximal"].append(data["old_log_probs"][i][t])
            engines = LATE[i][t] or OFF[i][t] or corrected
            found["old"].append(data["rollout_log_probs" if engines else "old_log_probs"][i][t])
            found["off"].append(torch.tensor(bool(OFF[i][t])))
            found["late"].append(torch.tensor(bool(LATE[i][t])))
            found["ref"].append(data["ref_log_prob"][i][t])
            found["w"].append(weight)
            found["a"].append(data["advantages"][i][t] / weight)
            found["call"].append(torch.tensor(10 * i + CALLS[i][t]))
    column = {name: torch.stack(values) for name, values in found.items()}
    terms = Terms(
        logp=column["logp"], old=column["old"], advantages=column["a"], weights=column["w"],
        segments=column["call"], stale=column["late"], off_policy=column["off"], proximal=column["proximal"],
        reference=column["ref"], entropy=column["entropy"],
    )  # fmt: skip
    return policy_loss(terms, recipe, corrected).total


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: "-".join(recipe.uses()))
def test_loss_and_gradient_are_those_of_the_formula(recipe: agl.Recipe) -> None:
    model, data, logp = batch()
    total, metrics = RecipeLoss(recipe.model_dump())(model_output=model, data=data)
    (ours,) = torch.autograd.grad(total, logp)
    again, data, logp = batch()
    wanted = expected(recipe, again, data)
    (theirs,) = torch.autograd.grad(wanted, logp)
    assert total.item() == pytest.approx(2 * wanted.item(), rel=1e-5)  # FSDP averages over two ranks
    torch.testing.assert_close(ours, 2 * theirs)
    assert float(theirs.abs().max()) > 0
    assert metrics["actor/pg_loss"].aggregate() == pytest.approx(total.item(), rel=1e-6)
    assert ("actor/kl_reference" in metrics) == bool(recipe.kl)


def test_a_micro_batch_of_padding_has_a_gradient_and_it_is_zero() -> None:
    model, data, logp = batch()
    data["response_mask"] = nested([torch.zeros(len(mask), dtype=torch.long) for _, mask in LENGTHS])
    total, _ = RecipeLoss(RECIPES[0].model_dump())(model_output=model, data=data)
    (gradient,) = torch.autograd.grad(total, logp)
    assert total.item() == 0 and not gradient.any()


def test_the_gap_is_of_trained_tokens_only() -> None:
    a, b = (
        [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])],
        [torch.tensor([-1.5, 9.0]), torch.tensor([-3.25])],
    )
    masks, fresh = [torch.tensor([1, 0]), torch.tensor([1])], [torch.tensor([0, 0]), torch.tensor([0])]
    assert measure(a, b, masks, fresh, fresh, 2.0) == {
        "logprob_gap_max": 0.5, "logprob_gap_mean": 0.375, "logprob_gap_tokens": 2.0,
    }  # fmt: skip
    assert measure(a, b, fresh, fresh, fresh, 2.0) == {}
    assert measure(a, b, masks, [torch.tensor([1, 1]), torch.tensor([0])], fresh, 2.0) == {
        "logprob_gap_max": 0.25, "logprob_gap_mean": 0.25, "logprob_gap_tokens": 1.0,
        "logprob_gap_stale_max": 0.5, "logprob_gap_stale_mean": 0.5, "logprob_gap_stale_tokens": 1.0,
    }  # fmt: skip


def test_the_weights_of_what_was_sampled_otherwise_are_measured_apart() -> None:
    ours = [torch.tensor([-1.0, -2.0, -0.5, -4.0])]
    captured = [torch.tensor([-1.0, -2.0 - math.log(5), -0.5 - math.log(0.5), -4.25])]
    masks, none = [torch.tensor([0, 1, 1, 1])], [torch.tensor([0, 0, 0, 0])]
    found = measure(ours, captured, masks, none, [torch.tensor([0, 1, 1, 0])], 2.0)
    assert found == {
        "logprob_gap_max": 0.25, "logprob_gap_mean": 0.25, "logprob_gap_tokens": 1.0,
        "off_policy/tokens": 2.0, "off_policy/capped": 1.0, "off_policy/weight_mean": pytest.approx(1.25),
    }  # fmt: skip
