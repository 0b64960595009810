"""Sequence numbers that callers reserve, as in v0.3: a span keeps the number that was given out for it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from agentlightning.store.base import Conflict
from agentlightning.store.sql import schema
from agentlightning.store.sql.attempts import touch, writable_attempt
from agentlightning.store.sql.core import Tables, everywhere, write
from agentlightning.store.sql.database import given
from agentlightning.store.sql.trace import admitted, count_bad, insert_spans, owner_of, refuse_late_rewards
from agentlightning.types import Span

_s = schema.spans.c
_HAS_NUMBER = select(_s.seq).where(given(_s.rollout_id, _s.attempt_id, _s.sequence)).limit(1)


@everywhere
@write
def get_next_span_sequence_id(store: Tables, rollout_id: str, attempt_id: str) -> int:
    """Reserve the next sequence number of an attempt: no other span or call gets it."""
    return _reserve(store, rollout_id, attempt_id)


@everywhere
@write
def get_many_span_sequence_ids(store: Tables, attempts: Sequence[tuple[str, str]]) -> list[int]:
    """Reserve a sequence number for each ``(rollout_id, attempt_id)``, which may repeat."""
    return [_reserve(store, *attempt) for attempt in attempts]


def _reserve(store: Tables, rollout_id: str, attempt_id: str) -> int:
    cached = writable_attempt(store, rollout_id, attempt_id, "numbers")
    touch(store, rollout_id, cached, store.clock(), 1)
    return cached.arrivals


@everywhere
@write
def add_numbered_spans(store: Tables, spans: Sequence[Span]) -> list[Span]:
    """Store spans under their numbers, which :func:`get_next_span_sequence_id` gave out, all or none. Raise
    ``ValueError`` for a number that it did not give out, and :class:`Conflict` for one that a span has.
    """
    kept, bad = admitted(spans)
    count_bad(store, bad)
    for span in kept:
        (rollout_id, attempt_id), number = owner_of(span), span.sequence_id
        cached = writable_attempt(store, rollout_id, attempt_id, "spans")
        refuse_late_rewards(store, [span])
        if not 1 <= number <= cached.arrivals:
            raise ValueError(
                f"span {span.name!r} bears the number {number}, which its attempt did not give out: "
                "get_next_span_sequence_id gives one"
            )
        if store.db.one(_HAS_NUMBER, rollout_id=rollout_id, attempt_id=attempt_id, sequence=number):
            raise Conflict(f"attempt {attempt_id} has a span with the number {number}")
        insert_spans(store, [span])
        touch(store, rollout_id, cached, store.clock())
    return kept
