"""Finished spans of OpenTelemetry as spans of an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.types import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


def span_from_otel(
    rollout_id: str, attempt_id: str, readable_span: ReadableSpan, sequence_id: int | None = None
) -> Span:
    """Convert a span as capture does (:mod:`agentlightning.capture.spans.convert`)."""
    from agentlightning.capture.context import AttemptContext
    from agentlightning.capture.spans.convert import convert

    span = convert(readable_span, AttemptContext(rollout_id, attempt_id, sink=_never_called))
    span.sequence_id = sequence_id or 0
    return span


def _never_called(_: Span) -> None:
    raise AssertionError("a span is converted, not emitted")
