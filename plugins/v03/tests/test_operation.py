from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from contract.capturing import Recording
from opentelemetry import trace

from agentlightning import capture, semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.emit import BODY, INPUT, NAME, OUTPUT
from agl_v03.emitted import emit_exception, emit_message
from agl_v03.operation import operation

pytestmark = pytest.mark.usefixtures("capturing")


@pytest.fixture
def capturing() -> Iterator[None]:
    COUNTS.clear()
    capture.install()
    yield
    capture.uninstall()


@pytest.fixture
def recording() -> Recording:
    return Recording("operations", None)


def test_a_block_is_a_span_and_the_parent_of_what_is_inside(recording: Recording) -> None:
    with recording.active():
        with (search := operation("search", query="tea")):
            emit_message("looking")
            trace.get_tracer("x").start_span("fetch").end()
            search.output = ["green", "black"]
        after = emit_message("done")
    message, fetch, span, _ = recording.spans
    assert message.parent_id == fetch.parent_id == span.span_id
    assert message.trace_id == fetch.trace_id == span.trace_id
    assert after.parent_id is None
    assert span.name == semconv.OPERATION_SPAN and span.status == "ok"
    assert span.attributes == {NAME: "search", INPUT: {"query": "tea"}, OUTPUT: ["green", "black"]}


def test_the_agents_name_reaches_through_an_operation(recording: Recording) -> None:
    tracer = trace.get_tracer("x")
    named = tracer.start_as_current_span("a", attributes={semconv.AGENT_NAME: "writer"})
    with recording.active(), named, operation("think"):
        tracer.start_span("inner").end()
    assert {span.attributes[semconv.AGENT_NAME] for span in recording.spans} == {"writer"}


def test_an_error_is_noted_and_passed_on(recording: Recording) -> None:
    with recording.active(), pytest.raises(ValueError, match="bad"), operation("fail"):
        raise ValueError("bad")
    (span,) = recording.spans
    assert (span.status, span.status_message) == ("error", "ValueError: bad")


async def test_decorated_functions_keep_their_behaviour(recording: Recording) -> None:
    @operation("double", unit="m")
    def double(x: int, *, times: int = 2) -> int:
        """Doc."""
        return x * times

    @operation("later")
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    with recording.active():
        assert double(4, times=3) == 12
        assert await asyncio.gather(*(later(n) for n in range(5))) == [1, 2, 3, 4, 5]
        with pytest.raises(TypeError, match="double"):
            double()  # type: ignore[call-arg]
    first, *rest, failed = recording.spans
    assert double.__name__ == "double" and double.__doc__ == "Doc."
    assert first.attributes == {NAME: "double", INPUT: {"unit": "m", "x": 4, "times": 3}, OUTPUT: 12}
    assert sorted((s.attributes[INPUT]["x"], s.attributes[OUTPUT]) for s in rest) == [
        (n, n + 1) for n in range(5)
    ]
    assert failed.status == "error"


def test_methods_do_not_record_self(recording: Recording) -> None:
    class Agent:
        @operation("act")
        def act(self, x: int) -> int:
            return x

    with recording.active():
        assert Agent().act(1) == 1
    assert recording.spans[0].attributes[INPUT] == {"x": 1}


async def test_the_work_that_a_plain_function_returns_belongs_to_its_operation(recording: Recording) -> None:
    async def greet(name: str, propagate: bool) -> str:
        await asyncio.sleep(0)
        return f"hello {name}"

    @operation("greet")
    def begin(name: str, propagate: bool) -> Any:
        return greet(name, propagate)

    with recording.active():
        assert await begin("ann", propagate=False) == "hello ann"
    (span,) = recording.spans
    assert span.attributes[INPUT] == {"name": "ann", "propagate": False}
    assert span.attributes[OUTPUT] == "hello ann"


def test_generators_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="generator"):

        @operation("stream")
        def numbers() -> Any:
            yield 1


def test_outside_an_attempt_the_code_just_runs() -> None:
    with operation("idle") as idle:
        idle.output = 1
    assert COUNTS.snapshot() == {"emit-outside-attempt": 1}


def test_messages_and_exceptions_are_spans(recording: Recording) -> None:
    with recording.active():
        emit_message("hello", attributes={"level": 1})
        try:
            raise KeyError("lost")
        except KeyError as error:
            emit_exception(error)
    message, failure = recording.spans
    assert message.name == semconv.MESSAGE_SPAN and message.attributes == {BODY: "hello", "level": 1}
    assert failure.status == "error" and failure.attributes[semconv.EXCEPTION_TYPE] == "KeyError"
    assert "test_messages_and_exceptions_are_spans" in failure.attributes["exception.stacktrace"]
