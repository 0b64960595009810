"""Token ids and logprobs as bytes: packed for a span, digested for a comparison.

Ids are int32 and logprobs float32, little-endian, so that equal tokens have equal digests on every machine.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from array import array
from collections.abc import Sequence


def _bytes(code: str, values: Sequence[int] | Sequence[float]) -> bytes:
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _values(code: str, text: str) -> array[int] | array[float]:
    packed: array[int] | array[float] = array(code)
    packed.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


def tokens_digest(prompt_ids: Sequence[int], response_ids: Sequence[int]) -> str:
    """sha256 hex over the number of prompt ids and all ids, each int32. Ids beyond int32 are an
    ``OverflowError``.

    The count is part of it, so that moving the border between prompt and response changes the digest. The
    same function as ``credit.verdicts.tokens_digest``, which may not import this module.
    """
    return hashlib.sha256(
        _bytes("i", (len(prompt_ids),)) + _bytes("i", prompt_ids) + _bytes("i", response_ids)
    ).hexdigest()


def pack_ids(ids: Sequence[int]) -> str:
    """Base64 of little-endian int32."""
    return base64.b64encode(_bytes("i", ids)).decode()


def unpack_ids(text: str) -> list[int]:
    """Inverse of :func:`pack_ids`."""
    return [int(v) for v in _values("i", text)]


def pack_logprobs(logprobs: Sequence[float]) -> str:
    """Base64 of little-endian float32."""
    return base64.b64encode(_bytes("f", logprobs)).decode()


def unpack_logprobs(text: str) -> list[float]:
    """Inverse of :func:`pack_logprobs`, to float32 precision."""
    return list(_values("f", text))
