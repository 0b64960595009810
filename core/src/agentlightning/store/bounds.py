"""Bounds of numbers from outside: seconds that a timer can wait, integers that a column can hold,
and ids that a URL cannot name.

Invariant: every number from outside is checked here before it reaches a timer or SQLite. NaN compares with
nothing: one in the heap of an event loop stops every other timer.
"""

from __future__ import annotations

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
