"""Tasks: seeded games. ``games(n, first)`` are ``n`` deals from ``first`` on."""

from __future__ import annotations

from typing import Any

TRAINING, EVALUATION = 0, 1_000_000
"""First deals of the two sets: no game that is evaluated was trained on."""


def games(n: int, first: int = TRAINING, **task: Any) -> list[dict[str, Any]]:
    """``n`` tasks; what else is given stands in each of them."""
    if n < 1:
        raise ValueError(f"n is {n}: there must be at least one game")
    return [{"id": f"deal-{deal}", "deal": deal, **task} for deal in range(first, first + n)]
