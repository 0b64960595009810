"""Token ids as bytes: the one packing that digests, prefix tests, spans and the store agree on.

Invariant: two id lists are equal exactly when their packed bytes are, and ``a`` is a prefix of ``b``
exactly when
``pack(a)`` is a prefix of ``pack(b)`` (every id takes 4 bytes, little-endian int32).
"""

from __future__ import annotations

import hashlib
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


def tokens_digest(prompt_ids: Sequence[int], response_ids: Sequence[int]) -> str:
    """sha256 hex over the number of prompt ids and all ids, each int32.

    The count is part of it, so that moving the border between prompt and response changes the digest.
    """
    return hashlib.sha256(pack((len(prompt_ids),)) + pack(prompt_ids) + pack(response_ids)).hexdigest()
