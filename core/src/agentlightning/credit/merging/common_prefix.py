"""How much of two packed id lists agrees (see :mod:`agentlightning.types.tokens` for the packing)."""

from __future__ import annotations

from agentlightning.types.tokens import WIDTH


def common_prefix(a: bytes, b: bytes) -> int:
    """How many leading ids two packed lists share; bisection over byte comparisons."""
    low, high = 0, min(len(a), len(b)) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * WIDTH, middle * WIDTH
        if a[start:end] == b[start:end]:
            low = middle
        else:
            high = middle - 1
    return low
