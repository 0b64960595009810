"""How a driver reads ``backend.options``: it refuses unknown names, and numbers that no training can use.

The drivers ``local`` and ``tinker`` share it. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from agentlightning.types import UsageError
from agentlightning.types.base import meant

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
            raise OptionError(f"{driver} has no option {name!r}{meant(name, names)}")
    for name, meaning in (needed or {}).items():
        if name not in values:
            raise OptionError(f"{driver} needs the option {name}: {meaning}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise OptionError(f"options of {driver}: {error}") from error


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
