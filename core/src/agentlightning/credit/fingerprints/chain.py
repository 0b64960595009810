"""The chain of a run: every record of it as a link that is bound to all links before it.

``head = sha256(run, number, kind, name, body, seals, head of the link before)``. Whoever changes, removes,
adds or exchanges a link must make every later head anew, and with a key (``AGL_SEAL_KEY``) cannot. What
cannot be told without a key: a chain that was rebuilt whole, unless its head was kept elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from agentlightning.types import AuditLink, RolloutFingerprint
from agentlightning.types.arrays import ARRAYS

KEY_VARIABLE = "AGL_SEAL_KEY"
"""Environment variable with the key that signs a run's chain."""
_EXACT = 2.0**53


def next_link(
    run_id: str,
    kind: Any,
    name: str,
    body: Mapping[str, Any],
    *,
    after: AuditLink | None,
    seals: Sequence[RolloutFingerprint] = (),
    key: str | None = None,
) -> AuditLink:
    """The link that follows ``after`` (``None``: the first), signed if there is a ``key``."""
    made = AuditLink(
        run_id=run_id,
        number=after.number + 1 if after else 0,
        kind=kind,
        name=name,
        body=dict(body),
        seals=list(seals),
        previous=after.head if after else "",
    )
    made.head = compute_head(made)
    made.mac = sign(made.head, key) if key else None
    return made


def compute_head(link: AuditLink) -> str:
    """What the head of a link must be: sha256 over all that it holds."""
    held = [link.run_id, link.number, link.kind, link.name, link.body, link.seals, link.previous]
    return hashlib.sha256(canonical(held)).hexdigest()


def sign(head: str, key: str) -> str:
    """HMAC-SHA256 of a head."""
    return hmac.new(key.encode(), head.encode(), hashlib.sha256).hexdigest()


def signed_by(link: AuditLink, key: str) -> bool:
    """Whether the link bears the signature of ``key``."""
    return link.mac is not None and hmac.compare_digest(link.mac, sign(link.head, key))


def digest(value: Any) -> str:
    """32 hex digits over a value, as :func:`canonical` writes it."""
    return hashlib.blake2b(canonical(value), digest_size=16).hexdigest()


def canonical(value: Any) -> bytes:
    """One text for equal values, whatever store or file they have passed through."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """A value as JSON has it: records without the fields that have their defaults (so that a later version's
    new field changes no digest), whole floats as integers, what JSON has no word for as text.
    """
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


@cache
def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """The fields of a record, each with its default."""
    return [
        (field.name, field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        for field in msgspec.structs.fields(kind)
    ]
