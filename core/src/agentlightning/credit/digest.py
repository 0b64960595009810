"""Digests of what was trained, and the chain that binds a run's records.

Equal :func:`rows_digest` mean the same training input, bit for bit. The encoding is canonical: fields in a
fixed order, every list and text preceded by its length, integers as little-endian int64, reals as
little-endian float64. The digest leaves out call ids, which name an attempt, and metadata: a rollout that was
run again with the same tokens has the same digest.

Each record of a run is a link of its *chain*, bound by its hash to all links before it:
``head = sha256(run, number, kind, name, body, fingerprints, head of the link before)``. To change, remove,
add or exchange a link, one must recompute every later head; with a key (``AGL_SIGNING_KEY``) only its
holder can. Without a key, a chain that was rebuilt whole goes unnoticed unless its head was kept elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b, sha256
from typing import Any

import msgspec

from agentlightning.types import AuditLink, RolloutFingerprint, Row
from agentlightning.types.arrays import ARRAYS, pack_int64
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


KEY_VARIABLE = "AGL_SIGNING_KEY"
"""Environment variable with the key that signs a run's chain."""
_EXACT = 2.0**53


def next_link(
    run_id: str,
    kind: Any,
    name: str,
    body: Mapping[str, Any],
    *,
    after: AuditLink | None,
    fingerprints: Sequence[RolloutFingerprint] = (),
    key: str | None = None,
) -> AuditLink:
    """Return the link that follows ``after`` (``None``: the first link), signed if there is a ``key``."""
    made = AuditLink(
        run_id=run_id,
        number=after.number + 1 if after else 0,
        kind=kind,
        name=name,
        body=dict(body),
        fingerprints=list(fingerprints),
        previous=after.head if after else "",
    )
    made.head = compute_head(made)
    made.signature = sign(made.head, key) if key else None
    return made


def compute_head(link: AuditLink) -> str:
    """Return the head of a link: sha256 over its content."""
    held = [link.run_id, link.number, link.kind, link.name, link.body, link.fingerprints, link.previous]
    return hashlib.sha256(canonical(held)).hexdigest()


def summary_entry(end: AuditLink) -> dict[str, Any]:
    """Return the entry about the chain that the summary of a run has. ``end``: the last link."""
    return {"head": end.head, "links": end.number + 1, "signed": end.signature is not None}


def sign(head: str, key: str) -> str:
    """Return the HMAC-SHA256 of a head."""
    return hmac.new(key.encode(), head.encode(), hashlib.sha256).hexdigest()


def signed_by(link: AuditLink, key: str) -> bool:
    """Whether the link is signed with ``key``."""
    return link.signature is not None and hmac.compare_digest(link.signature, sign(link.head, key))


def digest(value: Any) -> str:
    """Return 32 hex digits over a value in its canonical form."""
    return digest_of([canonical(value)])


def canonical(value: Any) -> bytes:
    """Encode a value: equal values give the same bytes, whichever store or file they passed through."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """Convert a value to JSON types: records without fields at their defaults (so that a new field of a later
    version changes no digest), whole floats as integers, other types as text.
    """
    if type(value) in _JSON:  # nearly all values; asking for a mapping first took half of the time
        return value
    if isinstance(value, msgspec.Struct):
        return {
            name: plain(held)
            for name, default in _defaults(type(value))
            if (held := getattr(value, name)) != default
        }
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple, *ARRAYS)):
        return [plain(held) for held in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, str):
        return str(value)
    return value if value is None or isinstance(value, bool | int) else str(value)


_JSON = frozenset({str, int, bool, type(None)})
"""Types that are JSON as they are."""


@cache
def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """The fields of a record, each with its default."""
    return [
        (field.name, field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        for field in msgspec.structs.fields(kind)
    ]
