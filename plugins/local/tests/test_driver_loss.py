"""The loss against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agentlightning.types import Recipe
from agl_local.training.loss import Terms, k3, policy_loss, segment_mean


def terms(
    ratios: list[float], advantages: list[float], weights: list[float] | None = None, **more: torch.Tensor
) -> Terms:
    """Tokens whose present probability is ``ratios`` times the old one; ``logp`` is a leaf."""
    old = torch.full((len(ratios),), -1.5, dtype=torch.float64)
    logp = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    values = {
        "old": old,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "weights": torch.tensor(weights or [1.0] * len(ratios), dtype=torch.float64),
        "segments": torch.arange(len(ratios)),
        "stale": torch.zeros(len(ratios), dtype=torch.bool),
    }
    return Terms(logp=logp, **{**values, **more})


def grad(t: Terms, recipe: Recipe) -> list[float]:
    (g,) = torch.autograd.grad(policy_loss(t, recipe).total, t.logp)
    return [float(x) for x in g]


def test_gradient_of_tiny_logits_is_the_hand_derived_one() -> None:
    # One token, three logits, ratio 1: d loss / d z = -w A (onehot - softmax).
    z = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(z, 0)[2:3]
    one = torch.ones(1, dtype=torch.float64)
    t = Terms(logp, logp.detach(), 2.0 * one, 0.25 * one, torch.zeros(1, dtype=torch.long), one < 0)
    (found,) = torch.autograd.grad(policy_loss(t, Recipe(name="r")).total, z)
    e = [math.exp(v) for v in (0.3, -1.0, 0.5)]
    p = [v / sum(e) for v in e]
    expected = [-0.25 * 2.0 * ((i == 2) - p[i]) for i in range(3)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 1.0, -1.1, -1.1),  # inside: d(-rA)/dlogp = -rA
        (1.5, 1.0, -1.3, 0.0),  # too likely already, good answer: cut at 1 + clip_high
        (0.5, 1.0, -0.5, -0.5),  # good answer became unlikely: not cut
        (0.5, -1.0, 0.8, 0.0),  # bad answer is unlikely already: cut at 1 - clip_low
        (1.5, -1.0, 1.5, 1.5),  # bad answer became likely: not cut
    ],
)
def test_clip_on_both_sides(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    recipe = Recipe(name="r", clip_low=0.2, clip_high=0.3)
    t = terms([ratio], [advantage])
    found = policy_loss(t, recipe)
    assert found.total.item() == pytest.approx(loss)
    assert bool(found.clipped) == (gradient == 0.0)
    assert grad(t, recipe) == pytest.approx([gradient])


def test_dual_clip_bounds_the_loss_of_bad_answers_only() -> None:
    recipe = Recipe(name="r", clip_ratio_c=3.0)
    t = terms([5.0, 2.0, 5.0], [-1.0, -1.0, 1.0])
    assert policy_loss(t, recipe).total.item() == pytest.approx(3.0 + 2.0 - 1.2)
    assert grad(t, recipe) == pytest.approx([0.0, 2.0, 0.0])


def test_tokens_that_were_sampled_otherwise_are_weighed_by_hand() -> None:
    # The policy gives the tokens 0.2, 0.3 and 0.4; they were drawn with 0.5, 0.1 and 0.4 (not marked).
    policy, drawn = (torch.tensor(p, dtype=torch.float64).log() for p in ([0.2, 0.3, 0.4], [0.5, 0.1, 0.4]))
    t = Terms(
        logp=policy.requires_grad_(),
        old=drawn,
        advantages=torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64),
        weights=torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64),
        segments=torch.arange(3),
        stale=torch.tensor([False, True, False]),
        off_policy=torch.tensor([True, True, False]),
    )
    # Weights 0.4, and 3 capped at 2; ratio 1, for the anchor is the policy itself.
    found = policy_loss(t, Recipe(name="r"))
    assert found.total.item() == pytest.approx(-0.5 * 0.4 * 1.0 + 0.25 * 2.0 * 1.0 - 0.25 * 2.0)
    assert grad(t, Recipe(name="r")) == pytest.approx([-0.2, 0.5, -0.5])
    assert grad(t, Recipe(name="r", off_policy_cap=4.0)) == pytest.approx([-0.2, 0.75, -0.5])
    assert grad(t, Recipe(name="r", off_policy_cap=4.0, importance_cap=0.1)) == pytest.approx(
        [-0.2, 0.75, -0.5]
    )  # what was sampled otherwise has its own cap, stale or not
    assert grad(t, Recipe(name="r", loss="reinforce")) == pytest.approx([-0.2, 0.5, -0.5])
    with pytest.raises(ValueError, match="no off_policy_cap"):
        policy_loss(t, Recipe(name="r", off_policy_cap=None))


def test_the_weighed_gradient_is_that_of_the_expectation_under_the_policy() -> None:
    """Summed over all answers with the probabilities that a mask drew them with: E_drawn[c · A · ∇ log π] is
    the policy's own gradient over what the mask allows.
    """
    logits = torch.tensor([0.4, -0.3, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
    policy = torch.log_softmax(logits, 0)
    reward = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    allowed = torch.tensor([0, 2, 3])
    drawn = torch.log_softmax(logits.detach()[allowed], 0)
    one = torch.ones(3, dtype=torch.float64)
    t = Terms(
        logp=policy[allowed],
        old=drawn,
        advantages=reward[allowed],
        weights=drawn.exp(),
        segments=torch.arange(3),
        stale=one < 0,
        off_policy=one > 0,
    )
    (found,) = torch.autograd.grad(policy_loss(t, Recipe(name="r")).total, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(-(policy.exp()[allowed] * reward[allowed]).sum(), logits)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_weights_scale_and_nothing_is_normalised_again() -> None:
    recipe = Recipe(name="r")
    once = grad(terms([1.1, 0.9], [1.0, -2.0], [0.3, 0.1]), recipe)
    twice = grad(terms([1.1, 0.9], [1.0, -2.0], [0.6, 0.2]), recipe)
    assert once == pytest.approx([-0.33, 0.18])
    assert twice == pytest.approx([2 * g for g in once])


def test_sequence_objective_uses_the_geometric_mean_per_call() -> None:
    recipe = Recipe(name="r", ratio_level="sequence", clip_low=0.2, clip_high=0.2)
    # Call 0: ratios 2 and 0.5 -> 1, not clipped although each token alone would be. Call 1: 1.5 -> clipped.
    t = terms([2.0, 0.5, 1.5], [1.0, 1.0, 1.0], [0.5, 0.25, 0.25], segments=torch.tensor([0, 0, 1]))
    found = policy_loss(t, recipe)
    assert found.total.item() == pytest.approx(-(0.75 * 1.0) - 0.25 * 1.2)
    # d/dlogp_j of (w0 + w1) * s is (w0 + w1) * s / |y| for each token of the call.
    assert grad(t, recipe) == pytest.approx([-0.375, -0.375, 0.0])
    assert segment_mean(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([1, 1, 0])).tolist() == [2.0, 2.0, 5.0]


def test_kl_is_never_negative_zero_at_the_reference_and_pulls_towards_it() -> None:
    logp = torch.linspace(-8, -0.01, 50, dtype=torch.float64)
    reference = torch.full_like(logp, -2.0)
    assert bool((k3(logp, reference) >= 0).all())
    assert float(k3(reference, reference).abs().max()) == 0.0
    recipe = Recipe(name="r", kl=0.1)
    t = terms([1.0, 1.0], [0.0, 0.0], reference=torch.tensor([-1.0, -2.0], dtype=torch.float64))
    # logp = -1.5; d k3 / d logp = 1 - exp(ref - logp).
    assert grad(t, recipe) == pytest.approx([0.1 * (1 - math.exp(0.5)), 0.1 * (1 - math.exp(-0.5))])
    with pytest.raises(ValueError, match="no reference"):
        policy_loss(terms([1.0], [1.0]), recipe)


def test_entropy_bonus_lowers_the_loss() -> None:
    t = terms([1.0], [0.0], [0.5], entropy=torch.tensor([2.0], dtype=torch.float64))
    assert policy_loss(t, Recipe(name="r", entropy=0.01)).total.item() == pytest.approx(-0.5 * 0.01 * 2.0)


def test_importance_cap_is_for_stale_tokens_and_anchors_at_the_proximal_policy() -> None:
    recipe = Recipe(name="r", importance_cap=2.0)
    stale = torch.tensor([True, True, False])
    # Without ``proximal`` the present weights are the anchor: ratio 1, importance min(now / old, cap).
    t = terms([1.5, 5.0, 1.5], [1.0, 1.0, 1.0], stale=stale)
    assert policy_loss(t, recipe).total.item() == pytest.approx(-(1.5 + 2.0 + 1.2))
    assert grad(t, recipe) == pytest.approx([-1.5, -2.0, 0.0])
    # With it: importance = proximal / old = 3 (capped to 2), ratio = now / proximal = 0.5.
    t = terms(
        [1.5], [1.0], stale=stale[:1], proximal=torch.tensor([-1.5 + math.log(3.0)], dtype=torch.float64)
    )
    assert grad(t, recipe) == pytest.approx([-2.0 * 0.5])
    # Off: stale tokens are clipped around what sampled them.
    assert grad(terms([1.5], [1.0], stale=stale[:1]), Recipe(name="r")) == pytest.approx([0.0])


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    # d loss / d logp = -w A sg(bounded ratio): 1.5 counts as 1.28, 0.4 as itself, whatever the sign.
    recipe = Recipe(name="r", loss="cispo", clip_low=1.0, clip_high=0.28)
    t = terms([1.5, 0.4, 1.5, 1.1], [1.0, 2.0, -1.0, 0.5], [0.5, 0.25, 0.5, 1.0])
    found = policy_loss(t, recipe)
    assert grad(t, recipe) == pytest.approx([-0.64, -0.2, 0.64, -0.55])
    assert found.clipped.tolist() == [True, False, True, False]
    assert grad(t, Recipe(name="r", loss="cispo", clip_low=0.2))[1] == pytest.approx(-0.25 * 2.0 * 0.8)
    at_one = terms([1.0, 1.0], [1.0, -2.0])  # one optimizer step: the clipped surrogate has the same gradient
    assert grad(at_one, recipe) == pytest.approx(grad(at_one, Recipe(name="r")))


def test_reinforce_is_the_score_function() -> None:
    assert grad(terms([3.0, 0.1], [1.0, -2.0], [0.5, 0.5]), Recipe(name="r", loss="reinforce")) == [-0.5, 1.0]


def test_huge_ratios_give_no_nan() -> None:
    t = terms([1e30, 1e-30], [1.0, -1.0])
    assert grad(t, Recipe(name="r")) == [0.0, 0.0]
