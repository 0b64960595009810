"""Which recipes the local driver carries out as written. Importing this loads no torch."""

from __future__ import annotations

import math

from agentlightning.types import Recipe

SUPPORTED_FIELDS = frozenset(
    {
        "ratio_level", "loss", "clip_low", "clip_high", "clip_ratio_c", "kl", "entropy", "epochs",
        "minibatches", "importance_cap", "off_policy_cap", "correction",
        # Carried out by credit, whose rows the driver takes as they are, or written on the row (temperature).
        "group_size", "credit", "gamma", "step_weight", "baseline", "group_by", "scale",
        "loss_aggregation", "loss_divisor",
        "max_staleness", "filter_zero_std_groups", "temperature", "merge",
    }
)  # fmt: skip
"""Recipe fields that this driver implements. Not: ``critic`` and ``lam`` (no value head), ``top_p`` and
``top_k`` (see ``refuse``).
"""

TRUNCATED = "an update cannot recompute the probabilities of tokens sampled from a truncated distribution"
UNSUPPORTED_FIELDS = {
    "critic": "the local driver has no value head; the driver `verl` trains one",
    "lam": "only GAE uses it, which needs a critic",
    "top_p": TRUNCATED,
    "top_k": TRUNCATED,
}
"""The other fields, each with the reason."""

LOSSES = frozenset({"clip", "cispo", "reinforce"})


def fault_of_loss(recipe: Recipe) -> str | None:
    """Why agl-local's loss (``training.loss``) cannot carry out the recipe as written; ``None``: it can. The
    driver ``tinker`` computes the same loss, and asks the same.
    """
    if recipe.loss not in LOSSES:
        return f"loss {recipe.loss!r} is not one of {', '.join(sorted(LOSSES))}"
    for field in ("epochs", "minibatches"):
        if getattr(recipe, field) < 1:
            return f"{field} = {getattr(recipe, field)}: must be at least 1"
    for field in ("clip_low", "clip_high", "kl", "importance_cap"):
        if not 0 <= (getattr(recipe, field) or 0) < math.inf:
            return f"{field} = {getattr(recipe, field)}: must be finite, and not negative"
    if recipe.loss == "cispo" and recipe.clip_ratio_c is not None:
        return "loss 'cispo' drops no token, so clip_ratio_c would be ignored"
    if recipe.loss == "reinforce":
        ignored = [f for f in ("ratio_level", "clip_low", "clip_high", "clip_ratio_c") if f in recipe.uses()]
        if ignored:
            return f"loss 'reinforce' has no ratio, so {', '.join(ignored)} would be ignored"
    return None


def refuse(recipe: Recipe) -> None:
    """Raise ValueError for a recipe that would not be carried out as written; the text says why."""
    where = f"recipe {recipe.name!r}"
    if recipe.critic:
        raise ValueError(
            f"{where}: critic = True needs a value head, which the local driver does not have; "
            "train it with the driver verl"
        )
    if recipe.top_p != 1.0 or recipe.top_k > 0:
        raise ValueError(
            f"{where}: top_p = {recipe.top_p}, top_k = {recipe.top_k}: {TRUNCATED}; use top_p = 1, top_k = -1"
        )
    if fault := fault_of_loss(recipe):
        raise ValueError(f"{where}: {fault}")
