"""Make a recipe from the values of its paper and the overrides of a user, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.types import Recipe
from agentlightning.types.base import nearest

PER_CALL_RULES = ("per_call", "discounted", "per_agent")
"""Credit rules that give the calls of a rollout different numbers: recipes with them compare turns, as
measured in ``docs/credit.md``, "Which baseline for which rule"."""

FIELDS: tuple[str, ...] = tuple(f.name for f in msgspec.structs.fields(Recipe))
"""The fields of a recipe, all of which can be overridden."""


def make(overrides: Mapping[str, Any], **defaults: Any) -> Recipe:
    """Return a recipe. ``ValueError`` for an unknown field (the valid ones are listed) or a value of another
    type.

    If the overrides choose another credit rule than the recipe's own, one of ``PER_CALL_RULES``, ``group_by``
    becomes ``["group", "turn"]``, unless it is overridden or the recipe has a critic, which compares nothing.
    """
    where = f"recipe {defaults.get('name', 'recipe')!r}"
    for field in overrides:
        if field not in FIELDS:
            near = nearest(field, FIELDS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise ValueError(f"{where} has no field {field!r}.{hint} Valid: {', '.join(FIELDS)}")
    fields = {**defaults, **overrides}
    rule = fields.get("credit")
    if rule in PER_CALL_RULES and rule != defaults.get("credit") and not fields.get("critic"):
        fields["group_by"] = overrides.get("group_by", ["group", "turn"])
    try:
        return msgspec.convert(fields, Recipe)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from None
