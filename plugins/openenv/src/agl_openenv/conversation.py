"""Observations as messages, and answers as actions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agl_openenv.session import RefusedAction

_NOT_SHOWN = frozenset({"done", "reward", "metadata"})
"""Fields that every observation of OpenEnv has; the model does not see them."""


def shown(observation: Mapping[str, Any], field: str | None) -> str:
    """Return the text of an observation: that of ``field``, else of its only field, else all of it as JSON.

    KeyError for a field that the observation does not have; it names those there are.
    """
    own = {name: value for name, value in observation.items() if name not in _NOT_SHOWN}
    if field is not None:
        if field not in observation:
            raise KeyError(f"the observation has no field {field!r}, but {sorted(observation)}")
        value: Any = observation[field]
    else:
        value = next(iter(own.values())) if len(own) == 1 else own
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def text_field(schema: Mapping[str, Any]) -> str | None:
    """Return the name of an action's only field if it is text, which an answer is as it stands."""
    fields = schema.get("properties") or {}
    if len(fields) != 1:
        return None
    [(name, kind)] = fields.items()
    return name if kind.get("type") == "string" and not kind.get("enum") else None


def asked_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``response_format`` that asks for an action as JSON."""
    return {"type": "json_schema", "json_schema": {"name": "action", "schema": dict(schema)}}


def action_of(answer: str, field: str | None) -> dict[str, Any]:
    """Return the action of an answer: its text as ``field``, else its JSON. Raise :class:`RefusedAction` for
    an answer that is no JSON object.
    """
    if field is not None:
        return {field: answer}
    try:
        action = json.loads(answer)
    except ValueError as error:
        raise RefusedAction(f"the answer is not JSON: {error}") from None
    if not isinstance(action, dict):
        raise RefusedAction(f"the answer is JSON of type {type(action).__name__}, not an object")
    return action
