"""Weights between engine and trainer are verl's ``rollout_correction``. Runs in verl's environment."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

import agentlightning as agl
from agentlightning.types import Correction
from agl_local.training.correction import ratios, weigh
from agl_local.training.loss import Terms, policy_loss
from agl_verl.inside.learning.gap import compare
from agl_verl.inside.learning.loss import RecipeLoss
from plugins.verl.tests.inside.test_loss import RECIPES, batch, expected

RULES = [
    Correction(kind=kind, level=level, cap=cap, floor=floor)
    for kind, level, cap, floor in [
        ("truncate", "token", 2.0, None),
        ("truncate", "token", 1.1, None),
        ("truncate", "sequence", 2.0, None),
        ("truncate", "sequence", 5.0, None),
        ("mask", "token", 2.0, 0.5),
        ("mask", "token", 5.0, 0.2),
        ("mask", "sequence", 4.0, 0.25),
    ]
]


def arrays() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs of trainer and engine of 16 rows of up to 12 tokens, and which of these are trained."""
    draw = torch.Generator().manual_seed(11)
    ours = -torch.rand(16, 12, generator=draw, dtype=torch.float64) * 3
    theirs = ours + torch.randn(16, 12, generator=draw, dtype=torch.float64) * 0.4
    ours[0, 0], theirs[0, 0] = -60.0, -1.0  # beyond what both bound the logarithm by
    ours[1, 0], theirs[1, 0] = -1.0, -60.0
    mask = (torch.rand(16, 12, generator=draw) < 0.8).long()
    mask[:, 0] = 1
    return ours, theirs, mask


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_weights_are_verls(rule: Correction) -> None:
    ours, theirs, mask = arrays()
    bounds = rule.cap if rule.kind == "truncate" else f"{rule.floor}_{rule.cap}"
    wanted, _ = compute_rollout_correction_weights(ours - theirs, mask, rule.level, bounds)
    on = mask.bool()
    rows = torch.arange(16)[:, None].expand_as(on)[on]
    found = weigh(ratios((ours - theirs)[on], rows, rule), rule.cap, rule)
    torch.testing.assert_close(found, wanted[on], rtol=1e-9, atol=1e-12)
    assert not torch.equal(found, torch.ones_like(found))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_gradient_is_that_of_verls_loss_with_its_weights(rule: Correction) -> None:
    """verl multiplies its clipped loss by ``rollout_is_weights``; we weigh the surrogate."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import ActorConfig

    proximal, engine, mask = arrays()
    draw = torch.Generator().manual_seed(5)
    noise = torch.randn(16, 12, generator=draw, dtype=torch.float64) * 0.2
    advantages = torch.randn(16, 12, generator=draw, dtype=torch.float64)
    on = mask.bool()
    rows = torch.arange(16)[:, None].expand_as(on)[on]
    logp = (proximal + noise).requires_grad_()
    bounds = rule.cap if rule.kind == "truncate" else f"{rule.floor}_{rule.cap}"
    weights, _ = compute_rollout_correction_weights(proximal - engine, mask, rule.level, bounds)
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2,
        clip_ratio_c=1e9, loss_agg_mode="token-mean", ppo_micro_batch_size_per_gpu=1,
    )  # fmt: skip
    theirs, _ = compute_policy_loss_vanilla(
        proximal, logp, advantages, mask, "token-mean", config, rollout_is_weights=weights
    )
    (wanted,) = torch.autograd.grad(theirs, logp)
    logp = (proximal + noise).requires_grad_()
    share = torch.full((int(on.sum()),), 1.0 / float(on.sum()), dtype=torch.float64)
    terms = Terms(
        logp[on],
        engine[on],
        advantages[on],
        share,
        rows,
        torch.zeros_like(rows).bool(),
        proximal=proximal[on],
    )
    total = policy_loss(terms, agl.GRPO(correction=rule), corrected=True).total
    (found,) = torch.autograd.grad(total, logp)
    torch.testing.assert_close(found[on], wanted[on], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("recipe", "rule"),
    list(itertools.product([RECIPES[0], RECIPES[1], RECIPES[6], RECIPES[9]], RULES[::2])),
    ids=str,
)
def test_the_loss_inside_verl_is_the_formula(recipe: agl.Recipe, rule: Correction) -> None:
    recipe = msgspec.convert({**recipe.model_dump(), "correction": rule.model_dump()}, agl.Recipe)
    model, data, logp = batch()
    total, _ = RecipeLoss(recipe.model_dump(), corrected=True)(model_output=model, data=data)
    (ours,) = torch.autograd.grad(total, logp)
    model, data, logp = batch()
    wanted = expected(recipe, model, data, corrected=True)
    (theirs,) = torch.autograd.grad(wanted, logp)
    assert total.item() == pytest.approx(2 * wanted.item(), rel=1e-5)
    torch.testing.assert_close(ours, 2 * theirs)


def test_the_whole_step_decides_and_says_why() -> None:
    ours = [torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-3.0])]
    captured = [torch.tensor([-1.5, -2.0, -0.5]), torch.tensor([-3.0])]
    masks, none = [torch.tensor([1, 1, 0]), torch.tensor([1])], [torch.zeros(3), torch.zeros(1)]
    calls = [torch.tensor([0, 0, -1]), torch.tensor([0])]
    given: tuple[Any, ...] = (ours, captured, masks, none, none, calls)
    said = compare(given, Correction())
    assert said["correction/corrected"] == 1.0 and said["correction/gap"] == pytest.approx(0.5 / 3)
    assert said["correction/ratio_max"] == pytest.approx(1.6487, rel=1e-4)
    assert compare(given, Correction(threshold=0.2))["correction/corrected"] == 0.0
    assert compare(given, None) == {}
    by_call = compare(given, Correction(level="sequence", cap=1.5))
    assert by_call["correction/truncated_share"] == pytest.approx(2 / 3)
    stale = [torch.ones(3), torch.ones(1)]
    assert compare((ours, captured, masks, stale, none, calls), Correction()) == {}
