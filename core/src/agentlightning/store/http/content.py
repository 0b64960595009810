"""Values in a request: only those that every reader of the store can read.

Decoding checks types. Where a type is ``Any`` (a task, attributes, a message), this checks the decoded value:
JSON types only, nested at most :data:`~agentlightning.webserver.body.MAX_DEPTH` levels deep.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

import msgspec

from agentlightning.webserver.body import NotPlain, TooDeep, check_plain


def check_json(value: Any, where: str = "$") -> None:
    """``ValueError`` names the place of a value that is not JSON, or nested too deep."""
    if isinstance(value, msgspec.Struct):
        for name in _untyped_fields(type(value)):
            check_json(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        for place, one in enumerate(value):
            check_json(one, f"{where}[{place}]")
    elif value and not isinstance(value, str | int | float | bytes | msgspec.UnsetType):
        _check_plain(value, where)


def _check_plain(value: Any, where: str) -> None:
    try:
        check_plain(_as_builtins(value))
    except (TooDeep, NotPlain) as error:
        raise ValueError(f"{error} - at `{where}`") from None


def _as_builtins(value: Any) -> Any:
    """Structs in a mapping (resources) as plain dicts."""
    if isinstance(value, dict) and any(isinstance(one, msgspec.Struct) for one in value.values()):
        return {key: msgspec.to_builtins(one) for key, one in value.items()}
    return value


@cache
def _untyped_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields of type ``Any``, and those whose structs have such fields."""
    return tuple(name for name, hint in typing.get_type_hints(kind).items() if _is_untyped(hint))


def _is_untyped(hint: Any) -> bool:
    if hint is Any or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return hint is Any or bool(_untyped_fields(hint))
    return any(_is_untyped(inner) for inner in typing.get_args(hint))
