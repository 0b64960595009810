"""List the terms of the loss that have a gradient at one trained token.

The loss of a token is ``weight · (c · surrogate(ratio · advantage) + kl · k3 − entropy · H)``. Rows hold
weight, advantage and the logprob of sampling. Three things exist only while the driver updates: the ratio
after the first optimizer step (or of a stale token), the entropy ``H`` at its place, and the reference's
logprob. Invariant: a value that only the driver had is reported as unknown, never as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from agentlightning.types import Recipe

UNKNOWN = "the driver alone knew, and did not record it"
LIMITS = ("clip", "importance cap")
"""Terms that change the policy gradient and add none of their own."""


class TrainedToken(NamedTuple):
    """The recorded values of a trained token."""

    advantage: float
    weight: float
    logprob: float | None
    """Its logprob when it was sampled."""
    version: int
    """That sampled it; negative if it is not known."""
    trained: int | None
    """Version that the step began with."""
    now: float | None = None
    """Its logprob under the policy that is shown."""
    gap: float | None = None
    """Largest difference between engine and trainer in any logprob of the step, where it was measured."""

    @property
    def fresh(self) -> bool:
        """Whether the weights that the update began with are known to have sampled it."""
        return self.version >= 0 and self.version == self.trained


class LossTerm(NamedTuple):
    """One term of the loss at a token."""

    term: str
    size: float | None
    """Factor of the gradient of the token's logprob, above 0 to make it likelier; of a limit, 0 if it does
    not act. ``None``: it depends on what is not on record.
    """
    text: str


def loss_terms(recipe: Recipe, token: TrainedToken) -> list[LossTerm]:
    """All loss terms at a token, with their limits."""
    found = [_gradient(recipe, token)]
    if recipe.critic or token.advantage:
        found += _limits(recipe, token)
    if recipe.entropy:
        found.append(_entropy(recipe, token))
    if recipe.kl:
        found.append(_kl(recipe, token))
    return found


def net_effect(found: Sequence[LossTerm]) -> str:
    """The net effect of the terms, in words."""
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
        return LossTerm(
            "policy gradient",
            None,
            "weight × the critic's advantage, which is made during the step and not kept",
        )
    size = token.weight * token.advantage
    way = (
        "does not pull: its advantage is 0"
        if not size
        else "makes it likelier"
        if size > 0
        else "makes it rarer"
    )
    through = ", through the mean log-ratio of its call" if recipe.ratio_level == "sequence" and size else ""
    return LossTerm("policy gradient", size, f"weight × advantage = {size:.6g} at ratio 1: {way}{through}")


def _limits(recipe: Recipe, token: TrainedToken) -> list[LossTerm]:
    """Clipping and the importance cap, which change the policy gradient."""
    found = []
    corrected = recipe.importance_cap is not None and not token.fresh
    if recipe.loss == "clip":
        found.append(_clip(recipe, token, corrected))
    if corrected:
        found.append(
            LossTerm(
                "importance cap",
                None,
                f"{_age(token)}: its policy gradient is multiplied by the probability before the update over "
                f"that at sampling, at most {recipe.importance_cap:g}; that factor {UNKNOWN}",
            )
        )
    elif recipe.importance_cap is not None:
        found.append(
            LossTerm(
                "importance cap", 0.0, "not stale: it was sampled by the version that was trained; factor 1"
            )
        )
    return found


def _clip(recipe: Recipe, token: TrainedToken, corrected: bool) -> LossTerm:
    """Whether the clip can have zeroed the policy gradient, and on which side."""
    sides = _clip_bounds(recipe, token)
    if not (token.fresh or corrected):
        return LossTerm(
            "clip",
            None,
            f"{sides}. {_age(token)}: its ratio in this step {UNKNOWN}{_ratio_now(recipe, token)}",
        )
    steps = recipe.epochs * recipe.minibatches
    if steps == 1:
        return _clip_at_ratio_one(recipe, token, sides)
    first = (
        f"ratio 1 in the first of {steps} optimizer steps"
        if recipe.minibatches == 1
        else f"{steps} optimizer steps, ratio 1 only in the very first"
    )
    return LossTerm("clip", None, f"{sides}. {first}; its later ratios {UNKNOWN}{_ratio_now(recipe, token)}")


def _clip_at_ratio_one(recipe: Recipe, token: TrainedToken, sides: str) -> LossTerm:
    """The clip before the weights have moved: it acts only if engine and trainer differ."""
    why = "one optimizer step, from the weights its ratio is taken against"
    down = -math.log1p(-recipe.clip_low) if recipe.clip_low < 1 else math.inf
    if token.gap is not None and token.gap >= min(math.log1p(recipe.clip_high), down):
        return LossTerm(
            "clip",
            None,
            f"{sides}. {why[0].upper()}{why[1:]}, but engine and trainer differ by up to {token.gap:.2g} in "
            f"logprob; its ratio {UNKNOWN}",
        )
    near = "" if token.gap is None else f" (engine and trainer differ by at most {token.gap:.2g} in logprob)"
    return LossTerm("clip", 0.0, f"does not act: {why}, so its ratio is 1{near}")


def _clip_bounds(recipe: Recipe, token: TrainedToken) -> str:
    """The ratios at which the clip zeroes the gradient, by the sign of the advantage."""
    over = f"above {1 + recipe.clip_high:g}"
    under = f"below {1 - recipe.clip_low:g}"
    if recipe.critic:
        return f"zeroes the gradient at ratios {over} (advantage > 0) or {under} (advantage < 0)"
    if token.advantage > 0:
        return f"zeroes its policy gradient at ratios {over}"
    dual = recipe.clip_ratio_c
    also = f", and above {dual:g} (dual clip)" if dual is not None else ""
    return f"zeroes its policy gradient at ratios {under}{also}"


def _ratio_now(recipe: Recipe, token: TrainedToken) -> str:
    """The effect of the clip under the policy that is shown."""
    if token.now is None or token.logprob is None or recipe.ratio_level == "sequence" or recipe.critic:
        return ""
    ratio = math.exp(max(-20.0, min(20.0, token.now - token.logprob)))
    dual = recipe.clip_ratio_c
    outside = (
        ratio > 1 + recipe.clip_high
        if token.advantage > 0
        else ratio < 1 - recipe.clip_low or (dual is not None and ratio > dual)
    )
    return (
        f"; under the policy shown its ratio is {ratio:.4g}, {'outside' if outside else 'inside'} the range"
    )


def _age(token: TrainedToken) -> str:
    if token.version < 0:
        return "which version sampled it is not known"
    if token.trained is None:
        return f"sampled by version {token.version}, trained at a version that is not known"
    return f"sampled by version {token.version}, trained at version {token.trained}"


def _entropy(recipe: Recipe, token: TrainedToken) -> LossTerm:
    size = token.weight * recipe.entropy
    return LossTerm(
        "entropy term",
        None if size else 0.0,
        f"weight × entropy = {size:.6g}: flattens the distribution here, so it makes the token rarer if its "
        f"logprob is above −H, likelier if below; H at this place {UNKNOWN}",
    )


def _kl(recipe: Recipe, token: TrainedToken) -> LossTerm:
    size = token.weight * recipe.kl
    return LossTerm(
        "KL term",
        None if size else 0.0,
        f"weight × kl = {size:.6g}, times (1 − π_reference/π): towards the reference policy, and 0 while the "
        f"policy still is the reference; the reference's logprob {UNKNOWN}",
    )
