"""Options of a part that a description names: checked by the part's own model, with the key in each error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentlightning.types.base import ConfigError, nearest

Options = TypeVar("Options", bound=BaseModel)


def checked_options(model: type[Options], given: Mapping[str, object], place: str) -> Options:
    """Return the options. Raise :class:`ConfigError` with a line for each wrong one, its key below
    ``place``.
    """
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise ConfigError("\n".join(_line(place, model, one) for one in error.errors())) from None


def _line(place: str, model: type[BaseModel], error: Mapping[str, object]) -> str:
    """Return an error about an option: its key, what is wrong, and the key that was meant."""
    loc = error["loc"]
    keys = [str(part) for part in loc] if isinstance(loc, tuple) else []
    where, given = ".".join([place, *keys]), error["input"]
    if error["type"] != "extra_forbidden":
        wrong = f", not {given!r}" if isinstance(given, str | int | float) else ""
        return f"{where}: {error['msg']}{wrong}"
    near = nearest(keys[-1], model.model_fields)
    hint = f"Did you mean {near!r}?" if near else f"Known here: {', '.join(model.model_fields)}"
    return f"{where}: it has no such option. {hint}"
