"""Which recipes verl's trainer carries out as written. Importing this loads no verl."""

from __future__ import annotations

from agentlightning.types import Recipe, UsageError

HONOURS = frozenset(
    {
        "loss", "clip_low", "clip_high", "clip_ratio_c", "epochs",
        # Carried out by credit, whose rows verl takes as they are.
        "group_size", "credit", "gamma", "baseline", "group_by", "scale", "normalise", "constant",
        "staleness", "drop_zero_spread", "temperature", "merge",
    }
)  # fmt: skip
"""Recipe fields that this driver implements."""


class Refused(UsageError, ValueError):
    """A recipe that would not be carried out as written, and why."""


def refuse(recipe: Recipe) -> None:
    """Raise Refused for a value that verl would take otherwise."""
    where = f"recipe {recipe.name!r} on verl"
    if recipe.loss != "clip":
        raise Refused(f"{where}: loss {recipe.loss!r} is not built; use 'clip', or the local driver")
    if recipe.epochs < 1:
        raise Refused(f"{where}: epochs = {recipe.epochs}: must be at least 1")
    if recipe.staleness:
        raise Refused(f"{where}: staleness = {recipe.staleness}: its trainer is synchronous here")
