"""Compare two plain values leaf by leaf."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

ABSENT = "nothing"
"""Stands for a missing value."""
_SHOWN = 60


def differences(then: Any, now: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, then, now) of every leaf that differs; ``ABSENT`` where a side has none."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in [*then, *(key for key in now if key not in then)]:
            path = f"{at}.{key}" if at else str(key)
            yield from differences(then.get(key, ABSENT), now.get(key, ABSENT), path)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif not same(then, now):
        yield at, then, now


def same(then: Any, now: Any) -> bool:
    """Whether two leaves are equal; NaN equals NaN."""
    return bool(then == now) or (then != then and now != now)


def close(then: Any, now: Any) -> bool:
    """Whether two computed numbers differ by rounding alone."""
    numbers = isinstance(then, int | float) and isinstance(now, int | float)
    return numbers and math.isclose(then, now, rel_tol=1e-9, abs_tol=1e-12)


def shorten(value: Any) -> str:
    """A value in a sentence."""
    text: str = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
