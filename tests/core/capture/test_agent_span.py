"""Agent spans: current while their own code runs, wherever the reader is, and over once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from contract.capturing import Recording
from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture import install, uninstall
from agentlightning.capture.context import tagged
from agentlightning.capture.identity import caller_tags, framework_tags
from agentlightning.capture.spans import AgentSpan


@pytest.fixture(autouse=True)
def capturing() -> Iterator[None]:
    install()
    yield
    uninstall()


async def names(closed: list[str], error: Exception | None = None) -> AsyncGenerator[str | None, None]:
    """Says who speaks while it runs."""
    try:
        yield framework_tags().get("agent")
        yield framework_tags().get("agent")
        if error is not None:
            raise error
    finally:
        closed.append(framework_tags().get("agent", "nobody"))


async def test_the_reader_is_not_in_the_span() -> None:
    recording, closed = Recording("span", None), []
    with recording.active():
        outside = trace.get_current_span()
        async for name in AgentSpan.for_agent("alice").wrap_stream(names(closed), begin=True):
            assert name == "alice" and framework_tags() == {} and trace.get_current_span() is outside
    assert closed == ["alice"]
    (span,) = recording.spans
    assert (span.name, span.status) == ("invoke_agent alice", "unset")


async def test_a_reader_who_stops_closes_the_source() -> None:
    recording, closed = Recording("stop", None), []
    with recording.active():
        items = AgentSpan.for_agent("alice").wrap_stream(names(closed), begin=True)
        await anext(items)
        await asyncio.create_task(_close(items))  # in another task than the one that read
    assert closed == ["alice"] and recording.spans[0].status == "unset"


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def test_an_error_is_the_spans_and_the_readers() -> None:
    recording, closed = Recording("error", None), []
    with recording.active():
        source = names(closed, ArithmeticError("no numbers"))
        with pytest.raises(ArithmeticError, match="no numbers"):
            async for _ in AgentSpan.for_agent("alice").wrap_stream(source, begin=True):
                pass
    (span,) = recording.spans
    assert (span.status, span.status_message) == ("error", "ArithmeticError: no numbers")


async def test_a_tool_belongs_to_the_agent_around_it() -> None:
    recording = Recording("tool", None)
    with recording.active():
        agent = AgentSpan.for_agent("alice").start()
        with agent.activate():
            tool = AgentSpan.for_tool("add", "call_0", "{}").start()
            with tool.activate():
                assert framework_tags() == {"agent": "alice"}
            tool.set_result("it broke", failed=True)
            tool.end()
        agent.end()
    span, around = recording.spans
    assert span.parent_id == around.span_id and span.attributes[semconv.AGENT_NAME] == "alice"
    assert (span.status, span.attributes[semconv.TOOL_CALL_RESULT]) == ("error", "it broke")


async def test_a_span_that_never_started_leaves_nothing() -> None:
    recording, closed = Recording("never", None), []
    with recording.active():
        span = AgentSpan.for_tool("add", "call_0", "{}")
        assert [name async for name in span.wrap_stream(names(closed))] == [None, None]
        span.set_result("3", failed=False)
        span.set_error(ValueError())
    assert recording.spans == []


async def test_run_is_the_whole_span() -> None:
    recording = Recording("played", None)
    with recording.active():
        with AgentSpan.for_agent("alice", node="plan", role="manager").run() as span:
            assert framework_tags() == {"agent": "alice", "node": "plan", "role": "manager"}
            with AgentSpan.for_agent("bob").run():  # an agent as another's tool: its role is its own
                assert framework_tags() == {"agent": "bob", "node": "plan"}
        assert span.span is not None and framework_tags() == {}
        with pytest.raises(ValueError), AgentSpan.for_tool("add", None, "{}").run():
            raise ValueError("no")
    inner, outer, tool = recording.spans
    assert inner.parent_id == outer.span_id and outer.attributes["agl.tag.node"] == "plan"
    assert tool.status == "error" and semconv.TOOL_CALL_ID not in tool.attributes


async def test_outside_an_attempt_nothing_is_recorded() -> None:
    with AgentSpan.for_agent("alice").run() as span:
        span.set_result("1")
    assert span.span is None


async def test_another_frameworks_agent_inside_speaks_for_itself() -> None:
    recording = Recording("foreign", None)
    with recording.active(), AgentSpan.for_agent("alice", role="manager", node="n").run():
        assert caller_tags() == {"agent": "alice", "role": "manager", "node": "n"}
        tracer = trace.get_tracer("theirs")
        with tracer.start_as_current_span("invoke_agent", attributes={semconv.AGENT_NAME: "bob"}):
            assert caller_tags() == {"agent": "bob", "role": "bob", "node": "n"}


def test_a_plain_generators_reader_is_not_in_the_span() -> None:
    def numbers() -> Generator[str | None, None, str]:
        yield framework_tags().get("agent")
        yield framework_tags().get("agent")
        return "done"

    def read() -> Generator[str | None, None, str]:
        return (yield from AgentSpan.for_agent("alice").wrap_generator(numbers(), begin=True))

    recording = Recording("plain", None)
    with recording.active():
        reader, seen = read(), []
        while True:
            try:
                seen.append(next(reader))
                assert framework_tags() == {}
            except StopIteration as end:
                assert end.value == "done"
                break
        broken = AgentSpan.for_agent("bob").wrap_generator(numbers(), begin=True)
        next(broken)
        with pytest.raises(ArithmeticError):
            broken.throw(ArithmeticError("no"))
    assert seen == ["alice", "alice"] and [span.status for span in recording.spans] == ["unset", "error"]


async def test_a_context_managers_block_is_not_in_the_span() -> None:
    seen: list[str | None] = []

    @asynccontextmanager
    async def session(swallow: bool) -> AsyncGenerator[str, None]:
        seen.append(framework_tags().get("agent"))
        try:
            yield "open"
        except ArithmeticError:
            if not swallow:
                raise
        finally:
            seen.append(framework_tags().get("agent"))

    recording = Recording("around", None)
    with recording.active():
        async with AgentSpan.for_agent("alice").wrap_context_manager(session(False)) as opened:
            assert opened == "open" and framework_tags() == {}
        async with AgentSpan.for_agent("bob").wrap_context_manager(session(True)):
            raise ArithmeticError("swallowed")
        with pytest.raises(ArithmeticError, match="no numbers"):
            async with AgentSpan.for_agent("carol").wrap_context_manager(session(False)):
                raise ArithmeticError("no numbers")
    assert seen == ["alice"] * 2 + ["bob"] * 2 + ["carol"] * 2
    assert [span.status for span in recording.spans] == ["unset", "unset", "error"]


async def test_an_awaitable_is_within_the_span_and_what_held_at_the_call() -> None:
    async def work() -> dict[str, str]:
        return caller_tags()

    recording = Recording("later", None)
    with recording.active():
        with tagged(phase="night"):
            promised = AgentSpan.for_agent("alice").wrap_awaitable(work())
        assert await promised == {"agent": "alice", "role": "alice", "phase": "night"}
    assert [span.name for span in recording.spans] == ["invoke_agent alice"]
