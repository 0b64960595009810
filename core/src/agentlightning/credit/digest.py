"""One digest for the rows of a step: equal digests mean equal training input, bit for bit.

The encoding is canonical: fields in a fixed order, every list and text preceded by its length, integers as
little-endian int64, reals as little-endian float64, metadata as JSON with sorted keys.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256

from agentlightning.types import Row


def rows_digest(rows: Sequence[Row]) -> str:
    """sha256 (hex) over all fields of all rows, in order."""
    state = sha256(struct.pack("<q", len(rows)))
    for row in rows:
        for part in _parts(row):
            state.update(part)
    return state.hexdigest()


def _parts(row: Row) -> Iterable[bytes]:
    yield _text(row.row_id)
    yield _text(row.rollout_id)
    yield _text(row.policy)
    yield _ints(row.token_ids)
    yield _ints(row.mask)
    yield _reals(row.advantages)
    yield _reals(row.logprobs)
    yield _reals(row.weights)
    yield _ints(row.versions)
    yield struct.pack("<q", len(row.segments))
    for segment in row.segments:
        yield _text(segment.call_id)
        yield struct.pack("<qqd?", segment.start, segment.end, segment.advantage, segment.trained)
    yield struct.pack("<dq", row.temperature, len(row.allowed))
    for start, sequences in sorted(row.allowed.items()):
        yield struct.pack("<qq", start, len(sequences))
        yield from map(_ints, sequences)
    yield _text(json.dumps(row.metadata, sort_keys=True, ensure_ascii=True))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<q", len(encoded)) + encoded


def _ints(values: Sequence[int]) -> bytes:
    return struct.pack(f"<q{len(values)}q", len(values), *values)


def _reals(values: Sequence[float]) -> bytes:
    return struct.pack(f"<q{len(values)}d", len(values), *values)
