"""Token ids as bytes: one canonical packing for digests and prefix tests.

Invariant: two id lists are equal exactly when their packed bytes are, and ``a`` is a prefix of ``b`` exactly
when ``pack(a)`` is a prefix of ``pack(b)`` (every id takes 4 bytes, little-endian int32).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

WIDTH = 4
"""Bytes of one packed id."""


def pack(ids: Sequence[int]) -> bytes:
    """Ids as little-endian int32. ``ValueError`` for what is no int32: a record with such ids is broken."""
    try:
        packed = array("i", ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers that fit 32 bits: {error}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


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
