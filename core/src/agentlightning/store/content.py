"""What a request may bring into the store: values that every reader can read again.

Types are checked while a body is decoded. Where a type says ``Any`` (a task, attributes, a message), this
checks what was decoded: only what JSON can say, nested at most :data:`~agentlightning.webserver.body.DEPTH`
levels deep.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

import msgspec

from agentlightning.webserver.body import NotPlain, TooDeep, check_plain


def check(value: Any, where: str = "$") -> None:
    """Refuse what no reader could read; ``ValueError`` says where it is."""
    if isinstance(value, msgspec.Struct):
        for name in _loose(type(value)):
            check(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        for place, one in enumerate(value):
            check(one, f"{where}[{place}]")
    elif value and not isinstance(value, str | int | float | bytes | msgspec.UnsetType):
        _check_plain(value, where)


def _check_plain(value: Any, where: str) -> None:
    try:
        check_plain(_unwrapped(value))
    except (TooDeep, NotPlain) as error:
        raise ValueError(f"{error} - at `{where}`") from None


def _unwrapped(value: Any) -> Any:
    """Structs of ours that stand in a mapping (resources) as what they hold."""
    if isinstance(value, dict) and any(isinstance(one, msgspec.Struct) for one in value.values()):
        return {key: msgspec.to_builtins(one) for key, one in value.items()}
    return value


@cache
def _loose(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields that may hold anything, or structs that have such fields."""
    return tuple(name for name, hint in typing.get_type_hints(kind).items() if _is_loose(hint))


def _is_loose(hint: Any) -> bool:
    if hint is Any or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return hint is Any or bool(_loose(hint))
    return any(_is_loose(inner) for inner in typing.get_args(hint))
