"""The chain of a run: each record is a link, bound by its hash to all links before it.

``head = sha256(run, number, kind, name, body, fingerprints, head of the link before)``. To change, remove,
add or exchange a link, one must recompute every later head; with a key (``AGL_SIGNING_KEY``) only its
holder can. Without a key, a chain that was rebuilt whole goes unnoticed unless its head was kept elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from agentlightning.credit.fingerprints.digest import digest_of
from agentlightning.types import AuditLink, RolloutFingerprint
from agentlightning.types.arrays import ARRAYS

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
