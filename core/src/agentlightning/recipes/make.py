"""Make a recipe from its paper's values and a user's overrides, checked field by field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.types import Recipe

FIELDS: tuple[str, ...] = tuple(f.name for f in msgspec.structs.fields(Recipe))
"""The fields of a recipe, all of which can be overridden."""


def make(overrides: Mapping[str, Any], **defaults: Any) -> Recipe:
    """A recipe. ``ValueError`` for an unknown field (the valid ones are listed) or a value of the wrong
    type."""
    name = defaults.get("name", "recipe")
    for field in overrides:
        if field not in FIELDS:
            near = difflib.get_close_matches(field, FIELDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"recipe {name!r} has no field {field!r}.{hint} Valid: {', '.join(FIELDS)}")
    try:
        return msgspec.convert({**defaults, **overrides}, Recipe)
    except msgspec.ValidationError as error:
        raise ValueError(f"recipe {name!r}: {error}") from None
