"""Token ids and logprobs as bytes: packed as text for a span.

Ids are int32 and logprobs float32, little-endian.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence

from agentlightning.types.tokens import pack


def _values(code: str, text: str) -> array[int] | array[float]:
    packed: array[int] | array[float] = array(code)
    packed.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


def pack_ids(ids: Sequence[int]) -> str:
    """Base64 of little-endian int32."""
    return base64.b64encode(pack(ids)).decode()


def unpack_ids(text: str) -> list[int]:
    """Inverse of :func:`pack_ids`."""
    return [int(v) for v in _values("i", text)]


def pack_logprobs(logprobs: Sequence[float]) -> str:
    """Base64 of little-endian float32."""
    packed = array("f", logprobs)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


def unpack_logprobs(text: str) -> list[float]:
    """Inverse of :func:`pack_logprobs`, to float32 precision."""
    return list(_values("f", text))
