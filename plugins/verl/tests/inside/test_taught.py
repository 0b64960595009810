"""A teacher's advantages through the loss of verl's workers: its gradient is agl-local's, and that of the
formula in float64. Needs verl: runs in its environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")
pytest.importorskip("agl_distill", reason="the plugin of teachers is not installed")

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from agentlightning.types import Row
from agl_local.training.batch import tokens_of
from agl_local.training.loss import Terms, policy_loss
from agl_verl.inside.learning.loss import RecipeLoss
from agl_verl.rows import OFF_POLICY, SEGMENTS, STALE, WEIGHTS, train_row
from plugins.distill.tests.taught_rows import RECIPE, REWARDED, VARIANTS, formula, models, taught

LIMIT = 1e-4
"""Relative error of a gradient: rows travel in float32."""
MOVED = 0.1
"""How far the policy has moved a logprob since it sampled the token: less than any clip."""


def nested(rows: Sequence[Any]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def through_verl(rows: Sequence[Row], moved: torch.Tensor) -> torch.Tensor:
    """The gradient of verl's loss in the logprob of each trained token. ``moved``: since it was sampled."""
    shipped = [train_row(row, RECIPE) for row in rows]
    columns = [one.columns() for one in shipped]
    sampled = [torch.as_tensor(one.logprobs, dtype=torch.float32) for one in columns]
    masks = [torch.as_tensor(one.mask, dtype=torch.long) for one in columns]
    now = moved.float().requires_grad_()
    parts = now.split([int(mask.sum()) for mask in masks])
    whole = []
    for one, logp, mask, part in zip(shipped, sampled, masks, parts, strict=True):
        changed = logp.index_add(0, mask.nonzero().flatten(), part)
        # the position before a token predicts it
        before, after = torch.zeros(len(one.prompt) - 1), torch.zeros(1)
        whole.append(torch.cat([before, changed, after]))
    fields = {
        "prompts": nested([torch.ones(len(one.prompt), dtype=torch.long) for one in shipped]),
        "responses": nested([torch.ones(len(one.response), dtype=torch.long) for one in shipped]),
        "response_mask": nested(masks),
        "advantages": nested([torch.as_tensor(one.carrier, dtype=torch.float32) for one in columns]),
        "old_log_probs": nested(sampled),
        "rollout_log_probs": nested(sampled),
        WEIGHTS: nested([torch.as_tensor(one.weights, dtype=torch.float32) for one in columns]),
        SEGMENTS: nested([one.segments for one in columns]),
        STALE: nested([one.stale for one in columns]),
        OFF_POLICY: nested([one.off_policy for one in columns]),
    }
    data = TensorDict(fields, batch_size=[len(rows)])
    tu.assign_non_tensor(data, dp_size=1)
    model = {"log_probs": torch.nested.nested_tensor_from_jagged(torch.cat(whole), _offsets(whole))}
    total, _ = RecipeLoss(RECIPE.model_dump())(model_output=model, data=data)
    (found,) = torch.autograd.grad(total, now)
    return found.double()


def _offsets(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([0, *map(len, parts)]).cumsum(0)


def locally(rows: Sequence[Row], moved: torch.Tensor) -> torch.Tensor:
    """The same of agl-local's loss."""
    tokens = tokens_of(rows).to("cpu", torch.float64)
    now = moved.clone().requires_grad_()
    terms = Terms(
        logp=tokens.old + now,
        old=tokens.old,
        advantages=tokens.advantages,
        weights=tokens.weights,
        segments=tokens.segments,
        stale=torch.zeros(len(tokens), dtype=torch.bool),
    )
    (found,) = torch.autograd.grad(policy_loss(terms, RECIPE).total, now)
    return found


@pytest.mark.parametrize("own", REWARDED)
@pytest.mark.parametrize(("divergence", "beta"), VARIANTS)
def test_the_gradient_of_every_variant_is_that_of_the_formula(
    divergence: str, beta: float, own: list[float]
) -> None:
    rows, said = taught(*models(), own, divergence=divergence, beta=beta)
    moves = torch.Generator().manual_seed(1)
    wanted, moved = [], []
    for row in rows:
        for number, segment in enumerate(row.segments):
            for t, theirs in zip(range(segment.start, segment.end), said[segment.call_id], strict=True):
                of_teacher = formula(math.exp(theirs - row.logprobs[t]), divergence, beta)
                advantage = own[min(number, len(own) - 1)] + 0.7 * of_teacher
                moved.append(MOVED * (2 * float(torch.rand(1, generator=moves)) - 1))
                wanted.append(-row.weights[t] * math.exp(moved[-1]) * advantage)
    exact, move = torch.tensor(wanted, dtype=torch.float64), torch.tensor(moved, dtype=torch.float64)
    ours, theirs = locally(rows, move), through_verl(rows, move)
    assert float((ours - theirs).norm() / ours.norm()) <= LIMIT
    assert float((theirs - exact).norm() / exact.norm()) <= LIMIT and float(exact.norm()) > 1e-2
