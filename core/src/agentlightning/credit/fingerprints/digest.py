"""One digest for the rows of a step: equal digests mean the same training input, bit for bit.

The encoding is canonical: fields in a fixed order, every list and text preceded by its length, integers as
little-endian int64, reals as little-endian float64. The digest leaves out call ids, which name an
attempt, and metadata: a rollout that was run again with the same tokens has the same digest.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b, sha256

from agentlightning.types import Row
from agentlightning.types.arrays import pack_int64
from agentlightning.types.tokens import little_endian


def rows_digest(rows: Sequence[Row]) -> str:
    """Return the sha256 (hex) over the trained content of all rows, in order."""
    state = sha256(struct.pack("<q", len(rows)))
    for row in rows:
        for part in _parts(row):
            state.update(part)
    return state.hexdigest()


def canonical_order(rows: Sequence[Row]) -> list[Row]:
    """Return ``rows`` sorted by their content, so that float sums do not depend on the order in which
    rollouts finished.
    """
    return sorted(
        rows, key=lambda row: (len(row.token_ids), row.token_ids, row.advantages, row.weights, row.row_id)
    )


def _parts(row: Row) -> Iterable[bytes]:
    yield text_bytes(row.row_id)
    yield text_bytes(row.rollout_id)
    yield text_bytes(row.policy)
    yield int_bytes(row.token_ids)
    yield int_bytes(row.mask)
    yield real_bytes(row.advantages)
    yield real_bytes(row.logprobs)
    yield real_bytes(row.weights)
    yield int_bytes(row.versions)
    yield struct.pack("<q", len(row.segments))
    for segment in row.segments:
        yield struct.pack("<qqd?", segment.start, segment.end, segment.advantage, segment.trained)
    yield struct.pack("<dq", row.temperature, len(row.allowed))
    for start, sequences in sorted(row.allowed.items()):
        yield struct.pack("<qq", start, len(sequences))
        yield from map(int_bytes, sequences)
    yield from constraint_bytes(row)


def constraint_bytes(row: Row) -> Iterable[bytes]:
    """Encode the grammars of ``row``, and where it was sampled otherwise than the policy."""
    for start, grammar in sorted(row.grammars.items()):
        yield struct.pack("<q", start)
        yield from map(text_bytes, (grammar.library, grammar.version, grammar.text))
    if starts := [segment.start for segment in row.segments if segment.off_policy]:
        yield text_bytes("off-policy")
        yield int_bytes(starts)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return 32 hex digits of blake2b over ``parts``."""
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def text_bytes(text: str) -> bytes:
    """Encode a text: its length, then UTF-8."""
    encoded = text.encode()
    return struct.pack("<q", len(encoded)) + encoded


def int_bytes(values: Sequence[int]) -> bytes:
    """Encode integers: their number, then int64."""
    return struct.pack("<q", len(values)) + pack_int64(values)


def real_bytes(values: Sequence[float]) -> bytes:
    """Encode reals: their number, then float64."""
    return struct.pack("<q", len(values)) + little_endian(array("d", values)).tobytes()
