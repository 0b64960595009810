"""A reward function of the user's, for ``agl rescore``."""

from __future__ import annotations

from typing import Any


def answered(task: dict[str, Any], result: Any) -> float:
    """Whether the answer has the form that was asked for."""
    return float("ANSWER" in result.answer)
