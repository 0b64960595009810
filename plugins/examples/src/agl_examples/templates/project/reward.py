"""What an answer is worth: training makes answers with a high reward more likely."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tools import number

ANSWER = re.compile(r"###\s*ANSWER:\s*(.*?)\s*(?:###|$)", re.IGNORECASE | re.DOTALL)


def score(task: Mapping[str, Any], answer: str) -> float:
    """Return 1.0 if the last answer between sharps is the task's number, else 0.0."""
    found = ANSWER.findall(answer)
    try:
        return float(bool(found) and number(found[-1].replace(",", "")) == Fraction(task["answer"]))
    except (ArithmeticError, SyntaxError, ValueError, RecursionError):
        return 0.0
