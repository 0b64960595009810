"""List the terms of the loss that have a gradient at one trained token.

The loss of a token is ``weight · (c · surrogate(ratio · advantage) + kl · k3 − entropy · H)``. Rows hold
weight, advantage and the logprob of sampling. Three values exist only while the driver updates: the ratio
after the first optimizer step (or of a stale or off-policy token), the entropy ``H`` at the token's place,
and the reference's logprob. Invariant: a value that only the driver had is reported as unknown, never as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from agentlightning.types import Correction, Recipe

UNKNOWN = "the driver alone knew, and did not record it"
LIMITS = ("clip", "ratio bound", "importance cap", "importance weight")
"""Terms that change the policy gradient and add none of their own."""


class TrainedToken(NamedTuple):
    """The recorded values of a trained token."""

    advantage: float
    weight: float
    logprob: float | None
    """Its logprob when it was sampled."""
    version: int
    """Policy version that sampled it; negative if unknown."""
    trained: int | None
    """Policy version before the step."""
    now: float | None = None
    """Its logprob under the policy that is shown."""
    gap: float | None = None
    """Largest difference between engine and trainer in any logprob of the step, where it was measured."""

    corrected: bool | None = None
    """Whether the step weighed fresh tokens by importance; ``None``: not recorded."""
    off_policy: bool = False
    """Whether it was drawn from another distribution than the policy's, with probability ``exp(logprob)``."""

    @property
    def fresh(self) -> bool:
        """Whether it was sampled by the version before the step."""
        return self.version >= 0 and self.version == self.trained


class LossTerm(NamedTuple):
    """One term of the loss at a token."""

    term: str
    size: float | None
    """Factor of the gradient of the token's logprob, above 0 to make it likelier; of a limit, 0 if it does
    not act. ``None``: it depends on a value that was not recorded.
    """
    text: str


_PENALTIES = (
    (
        "entropy",
        "entropy term",
        ": flattens the distribution here, so it makes the token rarer if its logprob is above −H, "
        f"likelier if below; H at this place {UNKNOWN}",
    ),
    (
        "kl",
        "KL term",
        ", times (1 − π_reference/π): towards the reference policy, and 0 while the policy still is the "
        f"reference; the reference's logprob {UNKNOWN}",
    ),
)
"""Field of the recipe that is a coefficient, its term, and the effect of the term."""


def loss_terms(recipe: Recipe, token: TrainedToken) -> list[LossTerm]:
    """Return all loss terms at a token, with their limits."""
    found = [_gradient(recipe, token)]
    if recipe.critic or token.advantage:
        if recipe.loss in ("clip", "cispo"):
            clip = _clip(recipe, token)
            found.append(clip if recipe.loss == "clip" else clip._replace(term="ratio bound"))
        if token.off_policy:
            found.append(_importance_weight(recipe.off_policy_cap, token))
        elif token.fresh and token.corrected and recipe.correction is not None:
            found.append(_correction(recipe.correction, token))
        elif recipe.importance_cap is not None:
            found.append(_importance_cap(recipe.importance_cap, token))
    for field, term, effect in _PENALTIES:
        if coefficient := getattr(recipe, field):
            size = token.weight * coefficient
            found.append(LossTerm(term, None if size else 0.0, f"weight × {field} = {size:.6g}{effect}"))
    return found


def net_effect(found: Sequence[LossTerm]) -> str:
    """Describe the net effect of the terms in words."""
    gradient, others = found[0], found[1:]
    unknown = [pull.term for pull in others if pull.size is None]
    free = [term for term in unknown if term not in LIMITS]
    if gradient.size is None:
        return f"which way it was pulled, {UNKNOWN}"
    if not gradient.size:
        if free:
            return f"pulled by the {' and the '.join(free)} alone; how far, {UNKNOWN}"
        return "nothing pulls at it (the update of other tokens may still move it: they share weights)"
    way = "made likelier" if gradient.size > 0 else "made less likely"
    if free:
        return f"{way} by the policy gradient, and pulled by the {' and the '.join(free)}; the sum {UNKNOWN}"
    if "clip" in unknown:
        return f"{way}, unless the clip zeroed it; how far, {UNKNOWN}"
    return f"{way}; how far, {UNKNOWN}" if unknown else way


def _gradient(recipe: Recipe, token: TrainedToken) -> LossTerm:
    """The policy gradient at ratio 1."""
    if recipe.critic:
        text = "weight × the critic's advantage, which is made during the step and not kept"
        return LossTerm("policy gradient", None, text)
    size = token.weight * token.advantage
    if not size:
        way = "does not pull: its advantage is 0"
    else:
        way = "makes it likelier" if size > 0 else "makes it rarer"
        way += ", through the mean log-ratio of its call" if recipe.ratio_level == "sequence" else ""
    return LossTerm("policy gradient", size, f"weight × advantage = {size:.6g} at ratio 1: {way}")


def _importance_cap(cap: float, token: TrainedToken) -> LossTerm:
    if token.fresh:
        text = "not stale: it was sampled by the version that was trained; factor 1"
        return LossTerm("importance cap", 0.0, text)
    factor = f"the probability before the update over that at sampling, at most {cap:g}"
    text = f"{_age(token)}: its policy gradient is multiplied by {factor}; that factor {UNKNOWN}"
    return LossTerm("importance cap", None, text)


def _correction(rule: Correction, token: TrainedToken) -> LossTerm:
    """The factor of a fresh token in a step whose engine and trainer disagree."""
    gap = "" if token.gap is None else f" (by at most {token.gap:.2g} in this step)"
    whose = "its call's" if rule.level == "sequence" else "its"
    bound = f"at most {rule.cap:g}"
    if rule.kind == "mask":
        low = 1.0 / rule.cap if rule.floor is None else rule.floor
        bound = f"and by 0 outside [{low:g}, {rule.cap:g}]"
    text = (
        f"engine and trainer disagree about its probability{gap}: its policy gradient is multiplied by "
        f"{whose} probability before the update over that at sampling, {bound}; that factor {UNKNOWN}"
    )
    return LossTerm("importance weight", None, text)


def _importance_weight(cap: float | None, token: TrainedToken) -> LossTerm:
    """The factor of a token that was sampled otherwise than the policy."""
    then = "" if token.logprob is None else f", {math.exp(min(0.0, token.logprob)):.4g}"
    at_most = "" if cap is None else f", at most {cap:g}"
    text = (
        "sampled otherwise than the policy (grammar, forced tool, own temperature): its policy gradient is "
        f"multiplied by the policy's probability before the update over the recorded one{then}{at_most}"
    )
    if token.now is None or token.logprob is None or cap is None:
        return LossTerm("importance weight", None, f"{text}; that factor {UNKNOWN}")
    now = min(cap, math.exp(max(-20.0, min(20.0, token.now - token.logprob))))
    return LossTerm("importance weight", None, f"{text}; under the policy shown it would be {now:.4g}")


def _clip(recipe: Recipe, token: TrainedToken) -> LossTerm:
    """Whether the clip can have zeroed the policy gradient, and on which side."""
    steps = recipe.epochs * recipe.minibatches
    if not (token.fresh or token.off_policy) and recipe.importance_cap is None:
        why = f"{_age(token)}: its ratio in this step {UNKNOWN}{_ratio_now(recipe, token)}"
    elif steps > 1:
        first = f"ratio 1 in the first of {steps} optimizer steps"
        if recipe.minibatches > 1:
            first = f"{steps} optimizer steps, ratio 1 only in the very first"
        why = f"{first}; its later ratios {UNKNOWN}{_ratio_now(recipe, token)}"
    else:  # the weights have not moved: the clip acts only if engine and trainer differ
        one_step = "one optimizer step, from the weights its ratio is taken against"
        down = -math.log1p(-recipe.clip_low) if recipe.clip_low < 1 else math.inf
        gap = "" if token.gap is None else f"{token.gap:.2g} in logprob"
        if token.corrected or token.gap is None or token.gap < min(math.log1p(recipe.clip_high), down):
            near = f" (engine and trainer differ by at most {gap})" if gap else ""
            return LossTerm("clip", 0.0, f"does not act: {one_step}, so its ratio is 1{near}")
        why = f"{one_step}, but engine and trainer differ by up to {gap}; its ratio {UNKNOWN}"
    return LossTerm("clip", None, f"{_clip_bounds(recipe, token)}. {why}")


def _clip_bounds(recipe: Recipe, token: TrainedToken) -> str:
    """The ratios at which the clip zeroes the gradient, by the sign of the advantage."""
    over = f"above {1 + recipe.clip_high:g}"
    under = f"below {1 - recipe.clip_low:g}"
    if recipe.loss == "cispo":
        return f"a ratio {under} or {over} counts as that bound; its policy gradient stays"
    if recipe.critic:
        return f"zeroes the gradient at ratios {over} (advantage > 0) or {under} (advantage < 0)"
    if token.advantage > 0:
        return f"zeroes its policy gradient at ratios {over}"
    dual = recipe.clip_ratio_c
    also = f", and above {dual:g} (dual clip)" if dual is not None else ""
    return f"zeroes its policy gradient at ratios {under}{also}"


def _ratio_now(recipe: Recipe, token: TrainedToken) -> str:
    """The effect of the clip under the policy that is shown."""
    unknown = token.now is None or token.logprob is None or token.off_policy
    if unknown or recipe.ratio_level == "sequence" or recipe.critic:
        return ""
    assert token.now is not None and token.logprob is not None
    ratio = math.exp(max(-20.0, min(20.0, token.now - token.logprob)))
    low, high = 1 - recipe.clip_low, recipe.clip_ratio_c or math.inf
    outside = ratio > 1 + recipe.clip_high if token.advantage > 0 else not low <= ratio <= high
    side = "outside" if outside else "inside"
    return f"; under the policy shown its ratio is {ratio:.4g}, {side} the range"


def _age(token: TrainedToken) -> str:
    if token.version < 0:
        return "which version sampled it is not known"
    if token.trained is None:
        return f"sampled by version {token.version}, trained at a version that is not known"
    return f"sampled by version {token.version}, trained at version {token.trained}"
