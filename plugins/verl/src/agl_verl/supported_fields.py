"""Which recipes verl's trainer carries out as written. Importing this loads no verl."""

from __future__ import annotations

import math

from agentlightning.types import Recipe, UsageError
from agl_verl.returns import check_critic

SUPPORTED_FIELDS = frozenset(
    {
        "ratio_level", "loss", "clip_low", "clip_high", "clip_ratio_c", "kl", "entropy", "epochs",
        "minibatches", "importance_cap", "off_policy_cap", "correction", "critic", "lam",
        # Carried out by credit, whose rows verl takes as they are.
        "group_size", "credit", "gamma", "step_weight", "baseline", "group_by", "scale",
        "loss_aggregation", "loss_divisor",
        "max_staleness", "filter_zero_std_groups", "temperature", "merge",
    }
)  # fmt: skip
"""Recipe fields that this driver implements."""

_TRUNCATED = "an update cannot recompute the probabilities of tokens sampled from a truncated distribution"
UNSUPPORTED_FIELDS = {"top_p": _TRUNCATED, "top_k": _TRUNCATED}
"""The other fields, each with the reason."""

LOSSES = ("clip", "cispo", "reinforce")


class Refused(UsageError, ValueError):
    """A recipe that would not be carried out as written, and why."""


def refuse(recipe: Recipe) -> None:
    """Raise Refused for a value that verl would take otherwise."""
    where = f"recipe {recipe.name!r} on verl"
    for field, reason in UNSUPPORTED_FIELDS.items():
        if field in recipe.uses():
            raise Refused(f"{where}: {field} = {getattr(recipe, field)!r}: {reason}")
    try:
        check_critic(recipe)
    except ValueError as error:
        raise Refused(f"{where}: {error}") from None
    if recipe.loss not in LOSSES:
        raise Refused(f"{where}: loss {recipe.loss!r} is not one of {', '.join(LOSSES)}")
    for field in ("epochs", "minibatches"):
        if getattr(recipe, field) < 1:
            raise Refused(f"{where}: {field} = {getattr(recipe, field)}: must be at least 1")
    if not 0 < (1.0 if recipe.importance_cap is None else recipe.importance_cap) < math.inf:
        raise Refused(f"{where}: importance_cap = {recipe.importance_cap}: must be above 0, and finite")


def plain(recipe: Recipe) -> bool:
    """Whether verl's own loss says the same as the recipe: its clipped surrogate, summed over the tokens.

    verl multiplies its KL and entropy terms with a sum over tokens that knows no weights, and its sequence
    objectives take a row for a sequence, where credit means a call. With a critic, advantages are verl's,
    and its loss knows no weights to go with them. A token of an older version was drawn with other logprobs
    than those that verl computes before it updates. Such recipes bring their loss
    (``inside/learning/loss.py``); so does, from the first step on that has any, a run with tokens that were
    sampled otherwise than the policy.
    """
    plain = recipe.loss == "clip" and recipe.ratio_level == "token" and not recipe.critic
    fresh = not recipe.max_staleness and recipe.importance_cap is None
    return plain and fresh and not recipe.kl and not recipe.entropy
