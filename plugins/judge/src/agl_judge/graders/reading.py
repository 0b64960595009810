"""Reads what a judge said: JSON of the form that it was asked for, and nothing else.

Invariant: an answer in another form is refused with the reason, for the judge to be asked again; nothing is
clamped, no text is read as a number, and no truth value as one.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from agl_judge.client import BadVerdict

_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a text is, maybe in a code fence."""
    text = text.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1].strip()
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadVerdict(f"it is no JSON object alone ({error})" if text else "it is empty") from None
    if not isinstance(found, dict):
        raise BadVerdict(f"it is {type(found).__name__} and no JSON object")
    return found


def _refuse(constant: str) -> float:
    raise BadVerdict(f"{constant} is no number")


def read_key(text: str, key: str) -> Any:
    """Return the value of ``key`` in the object that a text is."""
    found = read_object(text)
    if key not in found:
        raise BadVerdict(f"it has no key {key!r}")
    return found[key]


def read_score(value: Any, where: str, low: float = 0.0, high: float = 1.0) -> float:
    """Return a number within a range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadVerdict(f"{where} is {json.dumps(value)[:80]}, which is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not low <= number <= high:
        raise BadVerdict(f"{where} is {value!r:.80}, which is not within {low:g} and {high:g}")
    return number
