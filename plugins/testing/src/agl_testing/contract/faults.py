"""Contract: retries, failed calls, failed tools and cancelled calls are recorded as such."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from agentlightning import semconv
from agentlightning.capture.sdk_call import RETRIES
from agl_testing import ScriptedModelServer
from agl_testing.contract.features import STREAM, feature
from agl_testing.contract.hooks import AdapterHooks, add
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.script import SOLVER, Failing
from agl_testing.contract.tally import TALLY


class FaultsContract(AdapterHooks):
    """Tests of failures of the model and of tools, and of cancelled calls."""

    @STREAM
    @pytest.mark.parametrize("status", [429, 500])
    @feature("retries")
    async def test_retries_are_visible(
        self, server: ScriptedModelServer, shared: Any, status: int, stream: bool
    ) -> None:
        server.reply = Failing(self.say, status, status)
        recording = Recording("retried", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, stream)
        assert [exchange.retry for exchange in server.log] == [0, 1, 2, 0]
        assert [span.attributes[RETRIES] for span in recording.calls] == [2, 0]
        assert_exact(recording, server.log)
        first = recording.calls[0]
        parents = {exchange.headers["traceparent"] for exchange in server.log[:3]}
        assert parents == {f"00-{first.trace_id}-{first.span_id}-01"}

    @feature("retries")
    async def test_a_model_that_fails_for_good_is_an_error_span(
        self, server: ScriptedModelServer, shared: Any
    ) -> None:
        server.reply = Failing(self.say, 500, forever=True)
        recording = Recording("failed", server.url)
        with recording.active(), pytest.raises(Exception, match="not now"):
            await self.tool_agent(shared, "how much?", add, False)
        (call,) = recording.calls
        assert call.status == "error"
        assert semconv.TOKENS_DIGEST not in call.attributes
        assert call.attributes[RETRIES] == len(server.log) - 1 == 3

    @feature("tools")
    async def test_a_failing_tool_is_seen(self, server: ScriptedModelServer, shared: Any) -> None:
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            raise ArithmeticError("no numbers today")

        recording = Recording("broken", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, False)
        (tool,) = [s for s in recording.spans if s.attributes.get(semconv.OPERATION_NAME) == "execute_tool"]
        assert tool.status == "error"
        assert "no numbers today" in tool.attributes[semconv.TOOL_CALL_RESULT]
        assert_exact(recording, server.log)

    @STREAM
    async def test_a_prompt_that_is_too_long_raises(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        """A framework that retries with a shorter prompt needs a test of its own."""
        server.max_model_len = 5
        recording = Recording("long", server.url)
        with recording.active(), pytest.raises(Exception, match="maximum context length"):
            await self.tool_agent(shared, "how much?", add, stream)
        assert {exchange.status for exchange in server.log} == {400}
        assert [span.status for span in recording.calls] == ["error"] * len(server.log)
        assert set(recording.agents()) == {SOLVER}

    @STREAM
    @feature("async")
    async def test_a_cancelled_call_is_an_error_and_the_next_is_exact(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        """The call ends as an error, or exact if the framework finishes it in a thread or task."""
        asked, go, over = asyncio.Event(), asyncio.Event(), threading.Event()

        async def hang(body: dict[str, Any]) -> Any:
            asked.set()
            await go.wait()
            return self.answer("late")

        server.reply = hang
        recording = Recording("cancelled", server.url)
        recording.ended = lambda span: over.set() if span.name.startswith(semconv.CALL_SPAN) else None
        with recording.active():
            work = asyncio.create_task(self.tool_agent(shared, "how much?", add, stream))
            await asked.wait()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # some frameworks return a partial result
                await work
        go.set()
        assert await asyncio.to_thread(over.wait, 30)
        (call,) = recording.calls
        assert recording.agents() == [SOLVER]
        if call.status == "ok":
            assert_exact(recording, server.log)
        else:
            TALLY.aside(server.log)  # no client received the answer
        server.reply, seen = self.say, len(server.log)
        after = Recording("after", server.url)
        with after.active():
            await self.tool_agent(shared, "how much?", add, stream)
        assert_exact(after, server.log[seen:])
        assert after.agents() == [SOLVER, SOLVER]
