"""Spans that frameworks begin and end by events: where they hang, whose they are, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.capturing import Recording
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.delivery import attempt_trace_id
from agentlightning.capture.emit import recorded_operation
from agentlightning.capture.identity import CALLER_SOURCES, caller_tags, current_span, framework_tags
from agentlightning.capture.spans import EventSpan


@pytest.fixture
def recording() -> Iterator[Recording]:
    COUNTS.clear()
    recording = Recording("native", None)
    with recording.active():
        yield recording


def test_without_anything_above_it_begins_the_attempts_trace(recording: Recording) -> None:
    span = EventSpan(context=recording.context, title="invoke_agent a", tags={"agent": "a"})
    assert (span.trace_id, span.parent_id) == (attempt_trace_id("at-native"), None)
    span.end()
    (left,) = recording.spans
    assert (left.name, left.status, left.parent_id) == ("invoke_agent a", "ok", None)
    assert left.attributes[semconv.AGENT_NAME] == left.attributes[semconv.TAG_PREFIX + "agent"] == "a"


def test_parts_hang_below_the_nearest_that_has_a_title(recording: Recording) -> None:
    outer = EventSpan(context=recording.context, title="outer", tags={"agent": "a", "phase": "x"})
    silent = EventSpan(context=recording.context, parent=outer, tags={"phase": "y"})
    inner = EventSpan(context=recording.context, parent=silent, title="inner")
    assert inner.parent_id == outer.span_id and inner.trace_id == outer.trace_id
    assert inner.tags == {"agent": "a", "phase": "y"} and outer.tags["phase"] == "x"
    assert inner.is_within(outer) and not outer.is_within(inner)
    silent.end()
    assert recording.spans == []


def test_an_open_span_of_opentelemetry_is_nearer(recording: Recording) -> None:
    tracer = TracerProvider().get_tracer("theirs")
    outer = EventSpan(context=recording.context, title="outer", tags={"agent": "a"})
    with tracer.start_as_current_span("guest", attributes={semconv.AGENT_NAME: "guest"}) as live:
        assert outer.caller().parent is None and outer.caller().otel_span == 0
        inner = EventSpan(context=recording.context, parent=outer, title="inner")
        assert inner.parent_id == f"{live.get_span_context().span_id:016x}"
        assert inner.tags == {"agent": "guest"}
        assert inner.caller().parent is not None and inner.sees_no_nearer_span(get_current_span())
    assert outer.caller().parent is not None and outer.caller().tags == {"agent": "a"}


def test_it_stands_as_the_parent_of_what_happens(recording: Recording) -> None:
    span = EventSpan(context=recording.context, title="outer", tags={"agent": "a"})
    CALLER_SOURCES.append(span.caller)
    try:
        assert caller_tags() == {"agent": "a", "role": "a"}
        with recorded_operation("search", {}):
            agl.emit_object("inside")
            inner = EventSpan(context=recording.context, parent=span, title="inner")
        agl.emit_reward(1.0)
    finally:
        CALLER_SOURCES.remove(span.caller)
    message, operation, reward = recording.spans
    assert operation.parent_id == reward.parent_id == span.span_id
    assert message.parent_id == inner.parent_id == operation.span_id
    assert {s.attributes[semconv.AGENT_NAME] for s in recording.spans} == {"a"}


def test_a_failing_parent_is_counted_and_passed_over(recording: Recording) -> None:
    def broken() -> None:
        raise RuntimeError("ours")

    CALLER_SOURCES.append(broken)
    try:
        assert current_span() is get_current_span() and framework_tags() == {}
    finally:
        CALLER_SOURCES.remove(broken)
    assert COUNTS.snapshot() == {"identity-error": 2}


def test_errors_and_failures(recording: Recording) -> None:
    EventSpan(context=recording.context, title="raised").end(ValueError("no"))
    EventSpan(context=recording.context, title="failed").end(failed="said so " + "x" * 3000)
    raised, failed = recording.spans
    assert (raised.status, raised.status_message) == ("error", "ValueError: no")
    assert raised.attributes[semconv.EXCEPTION_TYPE] == "ValueError"
    assert failed.status == "error" and len(failed.status_message or "") == 2000
