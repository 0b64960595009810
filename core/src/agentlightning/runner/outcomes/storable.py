"""What of an attempt can be kept, when the store could not take all of it."""

from __future__ import annotations

from collections.abc import Sequence

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.emit.validation import BadRecord, quarantine
from agentlightning.capture.spans.convert import error_text
from agentlightning.store import codec
from agentlightning.store.base import Store
from agentlightning.types import Attempt, AttemptStatus, Span

UNSTORABLE = (TypeError, ValueError, ArithmeticError, RecursionError)
"""What storing a record raises that has no form; the store itself is well."""


def all_storable(spans: Sequence[Span], rollout_id: str, attempt_id: str) -> list[Span]:
    """The spans; in the place of each that has no stored form, a span that says so."""
    return [_storable(span, rollout_id, attempt_id) for span in spans]


async def store_as_failed(
    store: Store, rollout_id: str, attempt_id: str, spans: list[Span], error: Exception
) -> Attempt:
    """Write the end of an attempt of which not all could be stored: failed, with the spans that can be, or
    else without any, which is counted. ``spans`` are those that were stored, afterwards.
    """
    ids = (rollout_id, attempt_id)
    reason = f"bad-record: what the attempt recorded could not be stored: {error_text(error)}"
    spans[:] = all_storable(spans, *ids)
    try:
        return await store.update_attempt(*ids, AttemptStatus.FAILED, reason=reason, spans=spans)
    except UNSTORABLE:
        COUNTS.add("unstorable-span", len(spans))
        spans.clear()
        return await store.update_attempt(*ids, AttemptStatus.FAILED, reason=reason)


def as_bad_record(error: Exception) -> BadRecord:
    """An error of reading or storing what the agent handed in, as its refusal."""
    return error if isinstance(error, BadRecord) else BadRecord(f"it cannot be stored: {error_text(error)}")


def _storable(span: Span, rollout_id: str, attempt_id: str) -> Span:
    try:
        codec.pack_span(span)
        return span
    except UNSTORABLE as error:
        bad = BadRecord(f"the span has no stored form: {error_text(error)}")
        return quarantine(span, bad, rollout_id, attempt_id)
