"""Advantages and gradients of each divergence against the formula, in float64 over the whole vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agl_distill.divergence import DIVERGENCES, advantages
from agl_distill.recipe import distill
from agl_local.training.loss import Terms, policy_loss

VOCABULARY = 11


def reverse(p: Tensor, q: Tensor) -> Tensor:
    return (q * (q / p).log()).sum()


def forward(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum()


def jsd(beta: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Equation 1 of GKD, as it is written there."""

    def divergence(p: Tensor, q: Tensor) -> Tensor:
        middle = beta * p + (1 - beta) * q
        return beta * forward(p, middle) + (1 - beta) * forward(q, middle)

    return divergence


CASES = {
    "reverse": (reverse, "reverse", 0.5),
    "forward": (forward, "forward", 0.5),
    "jsd of 0.5": (jsd(0.5), "jsd", 0.5),
    "jsd of 0.1": (jsd(0.1), "jsd", 0.1),
    "jsd of 0.9": (jsd(0.9), "jsd", 0.9),
}


def distributions(seed: int) -> tuple[Tensor, Tensor]:
    """The teacher's probabilities, and the policy's logits, which have a gradient."""
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64).softmax(0)
    logits = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64).mul(2)
    return teacher, logits.requires_grad_()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_over_samples_has_the_gradient_of_the_divergence(name: str, seed: int) -> None:
    """Of every token as often as it is drawn, the driver's own loss has the gradient of the formula."""
    formula, divergence, beta = CASES[name]
    teacher, logits = distributions(seed)
    (exact,) = torch.autograd.grad(formula(teacher, logits.softmax(0)), logits)
    logp = logits.log_softmax(0)
    found = advantages(teacher.log().tolist(), logp.tolist(), divergence, beta)
    terms = Terms(
        logp=logp,
        old=logp.detach(),
        advantages=torch.tensor(found, dtype=torch.float64),
        weights=logp.detach().exp(),
        segments=torch.arange(VOCABULARY),
        stale=torch.zeros(VOCABULARY, dtype=torch.bool),
    )
    (mine,) = torch.autograd.grad(policy_loss(terms, distill()).total, logits)
    assert torch.allclose(mine, exact, rtol=0, atol=1e-14)
    assert float(exact.abs().max()) > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_where_both_agree_nothing_is_learned(name: str) -> None:
    _, divergence, beta = CASES[name]
    assert advantages([-0.7, -3.0], [-0.7, -3.0], divergence, beta) == [0.0, 0.0]


def test_each_advantage_by_hand() -> None:
    teacher, policy = [math.log(0.8), math.log(0.1)], [math.log(0.2), math.log(0.5)]
    assert advantages(teacher, policy, "reverse") == pytest.approx([math.log(4), math.log(0.2)])
    assert advantages(teacher, policy, "forward") == pytest.approx([3.0, -0.8])
    by_jsd = [0.75 * math.log(0.75 + 0.25 * 4), 0.75 * math.log(0.75 + 0.25 * 0.2)]
    assert advantages(teacher, policy, "jsd", 0.25) == pytest.approx(by_jsd)


def test_no_difference_is_too_large_for_floating_point() -> None:
    for divergence in DIVERGENCES:
        found = advantages([0.0, -1e5], [-1e4, 0.0], divergence)
        assert all(math.isfinite(one) for one in found) and found[0] > 0 > found[1]


def test_an_unknown_divergence_and_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="no divergence 'kl'; known: reverse, forward, jsd"):
        advantages([0.0], [0.0], "kl")
    with pytest.raises(ValueError, match=r"shorter|longer"):
        advantages([0.0], [0.0, 0.0], "reverse")
