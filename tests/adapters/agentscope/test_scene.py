"""Scenes: current while their own code runs, wherever the reader is, and over once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

pytest.importorskip("agl_agentscope", reason="the adapter is not installed")

from contract.recording import Recording
from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture import install, uninstall
from agl_agentscope.identity import identity
from agl_agentscope.scene import Scene


@pytest.fixture(autouse=True)
def capturing() -> Iterator[None]:
    install()
    yield
    uninstall()


async def names(closed: list[str], error: Exception | None = None) -> AsyncGenerator[str | None, None]:
    """Says who speaks while it runs."""
    try:
        yield identity().get("agent")
        yield identity().get("agent")
        if error is not None:
            raise error
    finally:
        closed.append(identity().get("agent", "nobody"))


async def test_the_reader_is_not_in_the_scene() -> None:
    recording, closed = Recording("scene", None), []
    with recording.active():
        outside = trace.get_current_span()
        async for name in Scene.of_agent("alice").through(names(closed), begin=True):
            assert name == "alice" and identity() == {} and trace.get_current_span() is outside
    assert closed == ["alice"]
    (span,) = recording.spans
    assert (span.name, span.status) == ("invoke_agent alice", "unset")


async def test_a_reader_who_stops_closes_the_source() -> None:
    recording, closed = Recording("stop", None), []
    with recording.active():
        items = Scene.of_agent("alice").through(names(closed), begin=True)
        await anext(items)
        await asyncio.create_task(_close(items))  # in another task than the one that read
    assert closed == ["alice"] and recording.spans[0].status == "unset"


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def test_an_error_is_the_scenes_and_the_readers() -> None:
    recording, closed = Recording("error", None), []
    with recording.active():
        source = names(closed, ArithmeticError("no numbers"))
        with pytest.raises(ArithmeticError, match="no numbers"):
            async for _ in Scene.of_agent("alice").through(source, begin=True):
                pass
    (span,) = recording.spans
    assert (span.status, span.status_message) == ("error", "ArithmeticError: no numbers")


async def test_a_tool_belongs_to_the_agent_around_it() -> None:
    recording = Recording("tool", None)
    with recording.active():
        agent = Scene.of_agent("alice").start()
        with agent.on():
            tool = Scene.of_tool("add", "call_0", "{}").start()
            with tool.on():
                assert identity() == {"agent": "alice"}
            tool.result("it broke", failed=True)
            tool.end()
        agent.end()
    span, around = recording.spans
    assert span.parent_id == around.span_id and span.attributes[semconv.AGENT_NAME] == "alice"
    assert (span.status, span.attributes[semconv.TOOL_CALL_RESULT]) == ("error", "it broke")


async def test_a_scene_that_never_started_leaves_nothing() -> None:
    recording, closed = Recording("never", None), []
    with recording.active():
        scene = Scene.of_tool("add", "call_0", "{}")
        assert [name async for name in scene.through(names(closed))] == [None, None]
        scene.result("3", failed=False)
        scene.fail(ValueError())
    assert recording.spans == []
