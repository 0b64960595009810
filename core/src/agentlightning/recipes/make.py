"""Make a recipe from its paper's values and a user's overrides, checked field by field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from agentlightning.types import Recipe, aliases

BY_RULE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {rule: {"group_by": ["group", "turn"]} for rule in ("per_call", "discounted", "per_agent")}
)
"""Credit rule that gives a rollout's calls numbers of their own → the fields that fit it. Measured:
``docs/credit.md``, "Which baseline for which rule"."""

FIELDS: tuple[str, ...] = tuple(f.name for f in msgspec.structs.fields(Recipe))
"""The fields of a recipe, all of which can be overridden."""


def make(overrides: Mapping[str, Any], **defaults: Any) -> Recipe:
    """A recipe. ``ValueError`` for an unknown field (the valid ones are listed) or a value of the wrong
    type.

    Where the overrides choose another credit rule than the recipe's own, fields that fit that rule take the
    place of the recipe's (:func:`fitting`); an override always wins.
    """
    name = defaults.get("name", "recipe")
    overrides = aliases.renamed(overrides, aliases.RECIPE, f"recipe {name!r}")
    defaults = aliases.renamed(defaults, aliases.RECIPE, f"recipe {name!r}")
    for field in overrides:
        if field not in FIELDS:
            near = difflib.get_close_matches(field, [*FIELDS, *aliases.RECIPE], n=1)
            hint = f" Did you mean {aliases.RECIPE.get(near[0], near[0])!r}?" if near else ""
            raise ValueError(f"recipe {name!r} has no field {field!r}.{hint} Valid: {', '.join(FIELDS)}")
    try:
        return msgspec.convert({**defaults, **fitting(overrides, defaults), **overrides}, Recipe)
    except msgspec.ValidationError as error:
        raise ValueError(f"recipe {name!r}: {error}") from None


def fitting(overrides: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What the rule in ``overrides`` changes of the recipe's defaults. With a critic nothing is compared, and
    nothing changes.
    """
    rule = overrides.get("credit", defaults.get("credit"))
    critic = overrides.get("critic", defaults.get("critic", False))
    if critic or rule == defaults.get("credit") or not isinstance(rule, str):
        return {}
    return {name: list(value) for name, value in BY_RULE.get(rule, {}).items()}
