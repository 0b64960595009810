"""The policy losses, top to bottom: read this file to know what is minimised.

All tensors are [N], one entry per trained token. With ``logp`` under the present weights, ``old`` as captured
at sampling time, advantage ``A`` and weight ``w`` (these sum over the step's batch as the recipe's
``loss_aggregation`` says, so nothing is divided by a count here):

    loss = Σ_t  w_t · ( c_t · surrogate_t  +  kl · k3_t  −  entropy · H_t )

    ratio_t      exp(logp_t − anchor_t)                                       PPO, arXiv:1707.06347
                 ratio_level "sequence": exp(mean of logp − anchor over a call)  GSPO,
                 arXiv:2507.18071
    surrogate_t  loss "clip":  −min( ratio_t·A_t, clamp(ratio_t, 1 − clip_low, 1 + clip_high)·A_t )
                               two ranges: DAPO, arXiv:2503.14476
                               at most −clip_ratio_c·A_t where A_t < 0         dual clip, arXiv:1912.09729
                 loss "cispo":  −sg( clamp(ratio_t, 1 − clip_low, 1 + clip_high) )·A_t·logp_t
                               sg: no gradient; CISPO, arXiv:2506.13585
                 loss "reinforce":  −A_t · logp_t
    k3_t         exp(ref_t − logp_t) − 1 − (ref_t − logp_t)  ≥ 0               joschu.net/blog/kl-approx.html

``anchor`` is ``old`` and ``c`` is 1, except for three kinds of tokens: fresh ones in a step whose engine and
trainer disagree (``correction``), stale ones when ``importance_cap`` is set, and off-policy ones, which were
drawn from another distribution than the policy's (under a grammar, at a temperature of their own) with the
probabilities ``exp(old)``. Those are clipped around the trainer's own weights before the update
(``proximal``, the policy's distribution in full, at the run's temperature) and carry an importance weight
``c`` made of ``exp(proximal − old)`` (:mod:`.correction`): the ratio is split in two (arXiv:2110.00641).
The cap is ``correction.cap`` for fresh tokens, ``importance_cap`` for stale ones, and ``off_policy_cap`` for
off-policy ones, stale or not. Kind, level and floor are those of ``correction``; off-policy tokens are
truncated one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentlightning.types import Correction, Recipe
from agl_local.training.correction import MAX_LOG_RATIO, ratios, weigh


@dataclass(frozen=True)
class Terms:
    """What the loss of some tokens reads: tensors [N], of which ``logp`` and ``entropy`` carry a gradient."""

    logp: Tensor
    old: Tensor
    advantages: Tensor
    weights: Tensor
    segments: Tensor
    stale: Tensor
    """Bool: not known to be sampled by the version being trained."""
    off_policy: Tensor | None = None
    """Bool: drawn from another distribution than the policy's; ``None``: no token was."""
    proximal: Tensor | None = None
    reference: Tensor | None = None
    entropy: Tensor | None = None


@dataclass(frozen=True)
class Loss:
    """``total`` is differentiable; the rest are detached per-token tensors for the metrics."""

    total: Tensor
    log_ratio: Tensor
    clipped: Tensor
    kl: Tensor | None


def policy_loss(terms: Terms, recipe: Recipe, corrected: bool = False) -> Loss:
    """The formula above, summed over the tokens given. ``corrected``: ``correction`` acts on fresh tokens."""
    anchor, correction = anchors(terms, recipe, corrected)
    log_ratio = (terms.logp - anchor).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    used = segment_mean(log_ratio, terms.segments) if recipe.ratio_level == "sequence" else log_ratio
    surrogate, clipped = SURROGATES[recipe.loss](terms, used.exp(), recipe)
    each = correction * surrogate
    kl = None
    if recipe.kl:
        if terms.reference is None:
            raise ValueError(
                f"recipe {recipe.name!r} has kl = {recipe.kl}, but no reference policy was given"
            )
        kl = k3(terms.logp, terms.reference)
        each = each + recipe.kl * kl
    if recipe.entropy:
        if terms.entropy is None:
            raise ValueError(
                f"recipe {recipe.name!r} has entropy = {recipe.entropy}, but no entropies were given"
            )
        each = each - recipe.entropy * terms.entropy
    total = (terms.weights * each).sum()
    return Loss(total, used.detach(), clipped.detach(), None if kl is None else kl.detach())


def anchors(terms: Terms, recipe: Recipe, corrected: bool = False) -> tuple[Tensor, Tensor]:
    """What ratios are taken against, and the importance weight ``c`` of each token. ``ValueError`` for
    off-policy tokens without their cap: credit leaves those out.
    """
    off = torch.zeros_like(terms.stale) if terms.off_policy is None else terms.off_policy
    if recipe.off_policy_cap is None and bool(off.any()):
        raise ValueError(
            "tokens were sampled otherwise than the policy, and the recipe has no off_policy_cap"
        )
    proximal = terms.logp.detach() if terms.proximal is None else terms.proximal
    rule, apart = recipe.correction, proximal - terms.old
    kinds: tuple[tuple[Tensor, float | None, Correction | None], ...] = (
        (~terms.stale & ~off, rule.cap if corrected and rule is not None else None, rule),
        (terms.stale & ~off, recipe.importance_cap, rule),
        (off, recipe.off_policy_cap, None),
    )
    anchor, c = terms.old, torch.ones_like(terms.old)
    for tokens, cap, how in kinds:
        if cap is not None:
            anchor = torch.where(tokens, proximal, anchor)
            c = torch.where(tokens, weigh(ratios(apart, terms.segments, how), cap, how), c)
    return anchor, c


def clip(terms: Terms, ratio: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """PPO's pessimistic surrogate, and where it is cut off (its gradient is zero there)."""
    a = terms.advantages
    plain = -a * ratio
    bounded = -a * ratio.clamp(1.0 - recipe.clip_low, 1.0 + recipe.clip_high)
    surrogate = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if recipe.clip_ratio_c is not None:
        ceiling = -a * recipe.clip_ratio_c
        clipped = clipped | ((a < 0) & (surrogate > ceiling))
        surrogate = torch.where(a < 0, torch.minimum(surrogate, ceiling), surrogate)
    return surrogate, clipped


def cispo(terms: Terms, ratio: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The score function times a bounded ratio, and where the bound acts: no token loses its gradient."""
    bounded = ratio.detach().clamp(1.0 - recipe.clip_low, 1.0 + recipe.clip_high)
    return -bounded * terms.advantages * terms.logp, bounded != ratio.detach()


def reinforce(terms: Terms, ratio: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The plain score-function gradient (Williams 1992): no ratio, nothing clipped."""
    return -terms.advantages * terms.logp, torch.zeros_like(ratio, dtype=torch.bool)


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(policy ‖ reference) from one sample: unbiased and never negative."""
    difference = (reference - logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


def segment_mean(values: Tensor, segments: Tensor) -> Tensor:
    """Each token gets the mean of ``values`` over the trained tokens of its segment."""
    size = int(segments.max()) + 1 if len(segments) else 0
    total = values.new_zeros(size).index_add(0, segments, values)
    count = values.new_zeros(size).index_add(0, segments, torch.ones_like(values))
    return (total / count)[segments]


Surrogate = Callable[[Terms, Tensor, Recipe], tuple[Tensor, Tensor]]
SURROGATES: dict[str, Surrogate] = {"clip": clip, "cispo": cispo, "reinforce": reinforce}
