"""Which recipes verl's trainer carries out as written. Importing this loads no verl."""

from __future__ import annotations

from agentlightning.types import Recipe, UsageError

HONOURS = frozenset(
    {
        "objective", "loss", "clip_low", "clip_high", "clip_ratio_c", "kl", "entropy", "epochs",
        "minibatches",
        # Carried out by credit, whose rows verl takes as they are.
        "group_size", "credit", "gamma", "baseline", "group_by", "scale", "normalise", "constant",
        "drop_zero_spread", "temperature", "merge",
    }
)  # fmt: skip
"""Recipe fields that this driver implements."""

REFUSES = {
    "staleness": "its trainer runs in synchronous mode, in which every token of a step is fresh",
    "importance_cap": "it corrects stale tokens, and in verl's synchronous mode there are none",
    "critic": "advantages come from credit; verl's critic would compute them from rewards that rows do not "
    "carry",
    "top_p": "tokens sampled from a part of the distribution have probabilities that no update computes",
    "top_k": "tokens sampled from a part of the distribution have probabilities that no update computes",
    "extra": "it means nothing to verl",
}
"""The other fields, each with the reason."""

LOSSES = ("clip", "reinforce")


class Refused(UsageError, ValueError):
    """A recipe that would not be carried out as written, and why."""


def refuse(recipe: Recipe) -> None:
    """Raise Refused for a value that verl would take otherwise."""
    where = f"recipe {recipe.name!r} on verl"
    for field, reason in REFUSES.items():
        if field in recipe.uses():
            raise Refused(f"{where}: {field} = {getattr(recipe, field)!r}: {reason}")
    if recipe.loss not in LOSSES:
        raise Refused(f"{where}: loss {recipe.loss!r} is not one of {', '.join(LOSSES)}")
    for field in ("epochs", "minibatches"):
        if getattr(recipe, field) < 1:
            raise Refused(f"{where}: {field} = {getattr(recipe, field)}: must be at least 1")


def plain(recipe: Recipe) -> bool:
    """Whether verl's own loss says the same as the recipe: its clipped surrogate, summed over the tokens.

    verl multiplies its KL and entropy terms with a sum over tokens that knows no weights, and its sequence
    objectives take a row for a sequence, where credit means a call. Such recipes bring their loss
    (``inside/loss.py``).
    """
    return recipe.loss == "clip" and recipe.objective == "token" and not recipe.kl and not recipe.entropy
