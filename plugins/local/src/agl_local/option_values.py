"""How a driver reads ``backend.options``: it refuses unknown names, and numbers that no training can use.

The drivers ``local`` and ``tinker`` share it. Importing this loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from agentlightning.types import UsageError
from agentlightning.types.base import meant, nearest

T = TypeVar("T", bound=msgspec.Struct)


class OptionError(UsageError, ValueError):
    """An option of the driver that it does not have, or a value that cannot be used."""


def read_as(
    kind: type[T], given: Mapping[str, Any] | None, driver: str, needed: Mapping[str, str] | None = None
) -> T:
    """``given`` as ``kind``. Raises OptionError that names the option, and the nearest valid one. ``driver``:
    how messages call the driver; ``needed``: what each option means that must be given.
    """
    values = dict(given or {})
    names = [field.name for field in msgspec.structs.fields(kind)]
    for name in values:
        if name not in names:
            raise OptionError(f"{driver} has no option {name!r}{_hint(name, names)}")
    for name, meaning in (needed or {}).items():
        if name not in values:
            raise OptionError(f"{driver} needs the option {name}: {meaning}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise OptionError(f"options of {driver}: {error}{_choices(kind, str(error), values)}") from error


def _hint(name: str, names: list[str]) -> str:
    """What is meant by an unknown name; options that only other drivers have are no answer."""
    hint = meant(name, names)
    option = re.match(r"\. It is backend\.options\.(\w+)", hint)
    if option is None or option[1] in names:
        return hint
    near = nearest(name.rpartition("_")[2], names, 0.85)
    return f". Did you mean {near!r}?" if near else f". Known here: {', '.join(names)}"


def _choices(kind: type[Any], error: str, given: Mapping[str, Any]) -> str:
    """The values that the field takes which ``error`` names, if they are listed; else what to give in place
    of the ``auto`` that other fields take.
    """
    field = error.rpartition("$.")[2].rstrip("`")
    allowed = [one for one in get_args(get_type_hints(kind).get(field)) if one is not type(None)]
    values = get_args(allowed[0]) if len(allowed) == 1 else allowed
    listed = [one for one in values if isinstance(one, str)]
    if not listed and given.get(field) == "auto":
        default = next(one.default for one in msgspec.structs.fields(kind) if one.name == field)
        return f"; it has no automatic choice: give a number, or leave it out for {default}"
    return f"; it takes {', '.join(listed)}" if listed else ""


def check_numbers(options: Any, counts: Iterable[str], not_negative: Iterable[str]) -> None:
    """Raise ValueError unless ``counts`` are at least 1 (or ``auto``), ``not_negative`` at least 0, and
    ``lr`` and ``max_grad_norm`` are positive.
    """
    for name in counts:
        value = getattr(options, name)
        if value != "auto" and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    for name in not_negative:
        if getattr(options, name) < 0:
            raise ValueError(f"{name} must not be negative, got {getattr(options, name)}")
    if not options.lr > 0:
        raise ValueError(f"lr must be positive, got {options.lr}")
    if options.max_grad_norm is not None and not options.max_grad_norm > 0:
        raise ValueError(
            f"max_grad_norm must be positive (or null for no clipping), got {options.max_grad_norm}"
        )
