"""Sequence numbers in advance, and spans of OpenTelemetry, for tracers that number spans themselves.

Invariant: within an attempt each number is given once: to a span, to a call, or to a caller that asked for
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentlightning.store.otel_spans import span_from_otel
from agentlightning.store.sqlite.trace.writing import TraceStore
from agentlightning.types import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class SpanNumbers(TraceStore):
    """Sequence numbers of spans."""

    async def get_next_span_sequence_id(
        self, rollout_id: str, attempt_id: str, *, request_id: str | None = None
    ) -> int:
        """Reserve the next sequence number of an attempt: no other span or call gets it."""
        pairs = [(rollout_id, attempt_id)]
        return (await self.get_many_span_sequence_ids(pairs, request_id=request_id))[0]

    async def get_many_span_sequence_ids(
        self, attempts: Sequence[tuple[str, str]], *, request_id: str | None = None
    ) -> list[int]:
        """Reserve a sequence number for each ``(rollout_id, attempt_id)``, which may repeat."""

        def work() -> list[int]:
            now = self.clock()
            found: list[int] = []
            for rollout_id, attempt_id in attempts:
                cached = self._writable_attempt(rollout_id, attempt_id, "numbers")
                self._touch(rollout_id, cached, now, 1)
                found.append(cached.arrivals)
            return found

        return await self._write("get_many_span_sequence_ids", work, request_id, list[int])

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
        *,
        request_id: str | None = None,
    ) -> Span:
        """Store a finished span of OpenTelemetry. ``sequence_id``: a number that was reserved for it."""
        span = span_from_otel(rollout_id, attempt_id, readable_span, sequence_id)
        numbered = sequence_id is not None
        return (await self.add_many_spans([span], numbered=numbered, request_id=request_id))[0]
