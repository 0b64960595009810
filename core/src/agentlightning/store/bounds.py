"""Bounds of values from outside: seconds that a timer can wait, integers that a column can hold,
ids that a URL cannot name, and fields of the wrong type.

Invariant: what a writer in the store's process gives is checked as what comes over HTTP, so that nothing is
stored that a reader cannot decode. Every number from outside is checked here before it reaches a timer or
SQLite. NaN compares with nothing: one in the heap of an event loop stops every other timer.
"""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import msgspec

from agentlightning import semconv
from agentlightning.types.failure import TRACEBACK

LONGEST = 1e9
"""Seconds (about thirty years)."""
LARGEST = (1 << 63) - 1
RESERVED_IDS = (".", "..", "null")
"""Ids that have another meaning in a URL or a query."""


def check_seconds(name: str, value: float | None, *, positive: bool = False) -> None:
    """``ValueError`` unless ``value`` is seconds that a timer can wait, or ``None``."""
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= LONGEST or (positive and not value):
        least = "more than 0" if positive else "at least 0"
        raise ValueError(f"{name} must be seconds, {least} and at most {LONGEST:g}, not {value!r}")


def check_count(name: str, value: int | None, least: int = 0) -> None:
    """``ValueError`` unless ``value`` is an integer from ``least`` that a column can hold, or ``None``."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise ValueError(f"{name} must be at least {least}, a whole number below 2**63, not {value!r}")


def check_fields(record: msgspec.Struct, where: str = "") -> None:
    """``ValueError``, which names the field, unless each field of a record has its type. Structs check what
    they are decoded from, and nothing when they are made in Python.
    """
    for name, hint in _fields(type(record)).items():
        value = getattr(record, name)
        if isinstance(value, msgspec.Struct):
            check_fields(value, f"{where}{name}.")
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise ValueError(f"{where}{name}: {error}") from None


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if hint is not Any}


_OWN_METADATA: dict[str, Any] = {
    semconv.SUPPLIED: list[str],
    semconv.JUDGED: bool,
    semconv.RESAMPLED: int,
    TRACEBACK: str,
}
"""Entries of an attempt's metadata that readers rely on → their types."""


def check_metadata(metadata: Any) -> None:
    """``ValueError`` unless it is a mapping of texts to values, and our own entries have their types."""
    try:
        found = msgspec.convert(metadata, dict[str, Any])
        for name in found.keys() & _OWN_METADATA.keys():
            msgspec.convert(found[name], _OWN_METADATA[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"metadata: {error}") from None
