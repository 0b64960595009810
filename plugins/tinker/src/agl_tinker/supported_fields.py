"""Which recipes can be carried out over the Tinker API as written. Importing this loads no client."""

from __future__ import annotations

from dataclasses import dataclass

from agentlightning.types import Recipe
from agl_local.supported_fields import TRUNCATED, fault_of_loss
from agl_tinker.options import Options, Refused

SUPPORTED_FIELDS = frozenset(
    {
        "ratio_level", "loss", "clip_low", "clip_high", "clip_ratio_c", "kl", "epochs", "minibatches",
        "importance_cap", "off_policy_cap", "correction",
        # Carried out by credit, whose rows the driver takes as they are.
        "group_size", "credit", "gamma", "step_weight", "baseline", "group_by", "scale",
        "loss_aggregation", "loss_divisor", "max_staleness", "filter_zero_std_groups", "merge",
    }
)  # fmt: skip
"""Recipe fields that this driver implements."""
UNSUPPORTED_FIELDS = {
    "critic": "the API has no value model; the driver `verl` trains one",
    "lam": "only GAE uses it, which needs a critic",
    "entropy": "the API returns the logprobs of chosen tokens, not distributions",
    "temperature": "the API computes logprobs at temperature 1, so rollouts must be sampled at it",
    "top_p": TRUNCATED,
    "top_k": TRUNCATED,
}
"""The other fields, each with the reason."""


@dataclass(frozen=True)
class Native:
    """A loss of the server: its name, its settings, and the input that holds weight × advantage."""

    loss: str
    config: dict[str, float]
    signal: str


def refuse(recipe: Recipe, options: Options) -> None:
    """Raise Refused for a recipe that would not be carried out as written."""
    where = f"recipe {recipe.name!r} over the Tinker API"
    for field, reason in UNSUPPORTED_FIELDS.items():
        if field in recipe.uses():
            raise Refused(f"{where}: {field} = {getattr(recipe, field)!r}: {reason}")
    if fault := fault_of_loss(recipe):
        raise Refused(f"{where}: {fault}")
    if options.loss == "native":
        native(recipe)


def native(recipe: Recipe) -> Native:
    """The server's loss that is the recipe's. Raises Refused where it has none."""
    own = {
        "ratio_level": recipe.ratio_level != "token",
        "kl": bool(recipe.kl),
        "clip_ratio_c": recipe.clip_ratio_c is not None,
        "importance_cap": recipe.importance_cap is not None,
        "correction": recipe.correction is not None,
        "off_policy_cap": recipe.off_policy_cap is not None,
    }
    if found := [name for name, used in own.items() if used]:
        raise Refused(
            f"recipe {recipe.name!r}: no loss of the Tinker API carries out {', '.join(found)}: set "
            f"{'it' if len(found) == 1 else 'them'} off in training.recipe, or leave backend.options.loss at "
            "'computed'"
        )
    if recipe.loss == "reinforce":
        return Native("cross_entropy", {}, "weights")
    bounds = {"clip_low_threshold": 1.0 - recipe.clip_low, "clip_high_threshold": 1.0 + recipe.clip_high}
    return Native({"clip": "ppo", "cispo": "cispo"}[recipe.loss], bounds, "advantages")
