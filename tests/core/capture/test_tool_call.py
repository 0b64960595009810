"""Tool calls whose framework says too little: one span each, completed, whoever made it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from contract.capturing import Recording
from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture import install, uninstall
from agentlightning.capture.context import tagged
from agentlightning.capture.spans import tool_call


@pytest.fixture(autouse=True)
def holding() -> Iterator[None]:
    install()
    yield
    uninstall()


def framework_span(call_id: str, name: str = "add") -> None:
    """What a framework leaves: a span that ends before the result is known."""
    attributes = {semconv.TOOL_NAME: name, semconv.TOOL_CALL_ID: call_id}
    trace.get_tracer("framework").start_span(f"execute_tool {name}", attributes=attributes).end()


def test_the_frameworks_span_waits_for_the_result() -> None:
    recording = Recording("held", None)
    with recording.active(), tool_call("add", "call_0", '{"a": 1}') as call:
        framework_span("call_0")
        assert recording.spans == []
        call.result = "42"
    (span,) = recording.spans
    assert (span.attributes[semconv.TOOL_CALL_ARGUMENTS], span.attributes[semconv.TOOL_CALL_RESULT]) == (
        '{"a": 1}',
        "42",
    )
    assert span.status == "unset" and span.attributes[semconv.ATTEMPT_ID] == "at-held"


def test_a_call_that_reached_no_tool_gets_a_span() -> None:
    recording = Recording("made", None)
    tracer = trace.get_tracer("framework")
    with (
        recording.active(),
        tagged(agent="solver"),
        tracer.start_as_current_span("invoke_agent solver") as parent,
        tool_call("nothing", "call_0", "{}") as call,
    ):
        call.result, call.failed = "no such tool", True
    span, _ = recording.spans
    assert (span.name, span.status, span.status_message) == ("execute_tool nothing", "error", "no such tool")
    assert span.parent_id == f"{parent.get_span_context().span_id:016x}"
    assert span.attributes[semconv.AGENT_NAME] == "solver"


def test_a_call_that_raised_keeps_the_frameworks_span() -> None:
    recording = Recording("raised", None)
    with recording.active(), pytest.raises(KeyError), tool_call("add", "call_0", "{}"):
        framework_span("call_0")
        raise KeyError("x")
    (span,) = recording.spans
    assert semconv.TOOL_CALL_ARGUMENTS in span.attributes
    assert semconv.TOOL_CALL_RESULT not in span.attributes


def test_spans_of_other_calls_pass() -> None:
    recording = Recording("others", None)
    with recording.active(), tool_call("add", "call_0", "{}"):
        framework_span("call_1")
        assert len(recording.spans) == 1
    assert len(recording.spans) == 1  # ours came to nothing: no span, no result


async def test_calls_at_once_and_calls_within_calls_keep_their_own() -> None:
    recording = Recording("many", None)

    async def run(number: int) -> None:
        with tool_call("add", f"call_{number}", str(number)) as call:
            await asyncio.sleep(0)
            with tool_call("inner", "call_0", f"{number} inner") as inner:
                framework_span("call_0", "inner")
                inner.result = f"{number} inner"
            framework_span(f"call_{number}")
            await asyncio.sleep(0)
            call.result = str(number)

    with recording.active():
        await asyncio.gather(*(run(number) for number in range(8)))
    assert len(recording.spans) == 16
    for span in recording.spans:
        attributes = span.attributes
        assert attributes[semconv.TOOL_CALL_ARGUMENTS] == attributes[semconv.TOOL_CALL_RESULT]


def test_outside_an_attempt_nothing_is_left() -> None:
    with tool_call("add", "call_0", "{}") as call:
        call.result = "42"
