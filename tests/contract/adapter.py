"""What every framework adapter must keep: inherit :class:`AdapterContract` and build the agents.

The suite runs the framework's own agents against the scripted model server, whose prompt ids come from a chat
template over what it received, and compares each call span with the server's log.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import wrapt
from contract.recording import Recording, assert_exact
from contract.script import ARGUMENTS, SOLVER, TEAM, TOOL, Failing, say
from contract.through_gateway import leased_attempt

from agentlightning import semconv
from agentlightning.capture import COUNTS, installed
from agentlightning.capture.emitters import emit_reward
from agentlightning.capture.rewards import find_final_reward
from agentlightning.capture.wire_call import RETRIES
from agentlightning.keys import CONTEXT_KEY
from agentlightning.testing import ScriptedModelServer


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class AdapterContract(ABC):
    """Hooks to implement, then the tests."""

    # ------------------------------------------------------------------------------------------- hooks
    @abstractmethod
    def instrumentor(self) -> Any:
        """The adapter's ``BaseInstrumentor``."""

    @abstractmethod
    def client(self, url: str, key: str) -> Any:
        """A model client of the framework, which may be shared by many agents. It retries up to three
        times."""

    @abstractmethod
    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        """Run one agent named ``solver`` with ``tool``, and answer after its result: two calls. Returns the
        answer."""

    @abstractmethod
    async def team(self, client: Any, task: str, stream: bool) -> None:
        """Run a team of ``writer`` and ``critic``, each with its name in its system prompt, each speaking
        once."""

    @abstractmethod
    async def close(self, client: Any) -> None:
        """Close the client."""

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str | None:
        """As ``tool_agent`` through the framework's blocking face; ``None`` where it has none."""
        return None

    def arguments(self, stream: bool) -> str:
        """A tool call's arguments in its span: as the model wrote them, unless the framework forgets that."""
        return ARGUMENTS

    @abstractmethod
    def patched(self) -> Sequence[tuple[Any, str]]:
        """Everything the adapter patches, as owner and attribute: compared by identity after
        ``uninstrument``."""

    # ---------------------------------------------------------------------------------------- fixtures
    @pytest.fixture(autouse=True)
    def instrumented(self) -> Iterator[None]:
        COUNTS.clear()
        self.instrumentor().instrument(raise_exception_on_conflict=True)
        yield
        if self.instrumentor().is_instrumented_by_opentelemetry:
            self.instrumentor().uninstrument()

    @pytest.fixture
    async def server(self) -> AsyncIterator[ScriptedModelServer]:
        async with ScriptedModelServer(say, ids="always") as server:
            yield server

    @pytest.fixture
    async def shared(self, server: ScriptedModelServer) -> AsyncIterator[Any]:
        client = self.client(server.url, CONTEXT_KEY)
        yield client
        await self.close(client)

    # ------------------------------------------------------------------------------------------- tests
    @STREAM
    async def test_tool_agent_is_exact(self, server: ScriptedModelServer, shared: Any, stream: bool) -> None:
        recording = Recording("tools", server.url)
        with recording.active():
            answer = await self.tool_agent(shared, "how much?", add, stream)
        assert "42" in answer
        assert_exact(recording, server.log)
        assert len(recording.calls) == 2
        assert recording.agents() == [SOLVER, SOLVER]
        assert {bool(exchange.body.get("stream")) for exchange in server.log} == {stream}
        assert COUNTS.snapshot() == {}

    @STREAM
    async def test_team_is_exact_and_named(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recording = Recording("team", server.url)
        with recording.active():
            await self.team(shared, "a poem", stream)
        assert_exact(recording, server.log)
        assert recording.agents() == list(TEAM)
        for span, exchange in zip(recording.calls, server.log, strict=True):
            assert span.attributes[semconv.AGENT_NAME] in str(exchange.body["messages"][0]["content"])

    @STREAM
    async def test_sixteen_agents_at_once(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recordings = [Recording(str(number), server.url) for number in range(16)]

        async def work(recording: Recording) -> None:
            with recording.active():
                if int(recording.context.attempt_id[3:]) % 2:
                    await self.team(shared, f"poem {recording.context.attempt_id}", stream)
                else:
                    await self.tool_agent(shared, f"task {recording.context.attempt_id}", add, stream)

        await asyncio.gather(*(work(recording) for recording in recordings))
        for number, recording in enumerate(recordings):
            name = recording.context.attempt_id
            mine = [x for x in server.log if x.headers[semconv.HEADER_ATTEMPT] == name]
            assert len(mine) == 2
            assert_exact(recording, mine)
            assert recording.agents() == (list(TEAM) if number % 2 else [SOLVER, SOLVER])
            assert {x.headers["authorization"] for x in mine} == {f"Bearer {recording.context.key}"}
            assert all(name in str(x.body["messages"]) for x in mine)
        assert len(server.log) == 32

    def test_the_blocking_face(self) -> None:
        with ScriptedModelServer(say, ids="always") as server:
            client = self.client(server.url, CONTEXT_KEY)
            recording = Recording("sync", server.url)
            with recording.active():
                answer = self.tool_agent_sync(client, "how much?", add, False)
            if answer is None:
                pytest.skip("the framework has no blocking face")
            assert_exact(recording, server.log)
            assert recording.agents() == [SOLVER, SOLVER]

    @STREAM
    async def test_ids_travel_where_no_gateway_records_them(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recording = Recording("far", gateway=None)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, stream)
        assert_exact(recording, server.log)
        assert all(semconv.PROMPT_IDS in span.attributes for span in recording.calls)
        for exchange in server.log:
            assert not [name for name in exchange.headers if name.startswith("x-agl")]
            assert recording.context.key not in str(exchange.headers)

    @STREAM
    async def test_through_the_gateway_every_call_is_exact(self, tmp_path: Path, stream: bool) -> None:
        async with ScriptedModelServer(say) as engine, leased_attempt(engine, tmp_path) as leased:
            client = self.client(leased.context.gateway or "", CONTEXT_KEY)
            with leased.active():
                await self.tool_agent(client, "how much?", add, stream)
                await self.team(client, "a poem", stream)
            await self.close(client)
            record, verdicts = await leased.finish()
        assert [verdict.kind for verdict in verdicts] == ["exact"] * 4, verdicts
        assert [call.tags["agent"] for call in record.calls] == [SOLVER, SOLVER, *TEAM]
        for call, exchange in zip(record.calls, engine.log, strict=True):
            (answer,) = exchange.answers
            assert (call.prompt_ids, call.response_ids) == (exchange.prompt_ids, answer.ids)
            assert call.logprobs == answer.logprobs
            assert not [name for name in exchange.headers if name.startswith("x-agl")]
        assert len(record.wire) == 4

    @STREAM
    async def test_tool_spans_have_arguments_and_results(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recording = Recording("spans", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, stream)
        (tool,) = [s for s in recording.spans if s.attributes.get(semconv.OPERATION_NAME) == "execute_tool"]
        assert tool.attributes[semconv.TOOL_NAME] == TOOL
        assert tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == self.arguments(stream)
        assert tool.attributes[semconv.TOOL_CALL_RESULT] == "42"
        assert tool.attributes[semconv.AGENT_NAME] == SOLVER
        assert tool.attempt_id == recording.context.attempt_id
        first, second = recording.calls
        assert first.end_time <= tool.end_time <= second.end_time

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

    async def test_rewards_land_in_their_attempt(self, server: ScriptedModelServer, shared: Any) -> None:
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            emit_reward(0.25, name="step", final=False)
            return a + b

        recording = Recording("rewarded", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, False)
            emit_reward(1.0, call=server.log[0].response_id)
            emit_reward(0.5)
        inside, of_call, final = recording.named(semconv.REWARD_SPAN)
        assert inside.attributes[semconv.REWARD_VALUE] == 0.25
        assert of_call.attributes[semconv.REWARD_SPAN_ID] == recording.calls[0].span_id
        assert find_final_reward(recording.spans) == final.attributes[semconv.REWARD_VALUE] == 0.5

    @STREAM
    @pytest.mark.parametrize("status", [429, 500])
    async def test_retries_are_visible(
        self, server: ScriptedModelServer, shared: Any, status: int, stream: bool
    ) -> None:
        server.reply = Failing(status, status)
        recording = Recording("retried", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, stream)
        assert [exchange.retry for exchange in server.log] == [0, 1, 2, 0]
        assert [span.attributes[RETRIES] for span in recording.calls] == [2, 0]
        assert_exact(recording, server.log)
        first = recording.calls[0]
        parents = {exchange.headers["traceparent"] for exchange in server.log[:3]}
        assert parents == {f"00-{first.trace_id}-{first.span_id}-01"}

    async def test_a_model_that_fails_for_good_is_an_error_span(
        self, server: ScriptedModelServer, shared: Any
    ) -> None:
        server.reply = Failing(500, forever=True)
        recording = Recording("failed", server.url)
        with recording.active(), pytest.raises(Exception, match="not now"):
            await self.tool_agent(shared, "how much?", add, False)
        (call,) = recording.calls
        assert call.status == "error"
        assert semconv.TOKENS_DIGEST not in call.attributes
        assert call.attributes[RETRIES] == len(server.log) - 1 == 3

    async def test_nothing_is_left_after_uninstrument(self, server: ScriptedModelServer, shared: Any) -> None:
        self.instrumentor().uninstrument()
        before = [vars(owner).get(name) for owner, name in self.patched()]
        self.instrumentor().instrument()
        during = [vars(owner).get(name) for owner, name in self.patched()]
        assert all(a is not b for a, b in zip(before, during, strict=True))
        self.instrumentor().uninstrument()
        after = [vars(owner).get(name) for owner, name in self.patched()]
        assert all(a is b for a, b in zip(before, after, strict=True))
        assert not installed()
        recording = Recording("after", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, False)
        assert recording.spans == []
        assert semconv.HEADER_ATTEMPT not in server.log[0].headers

    async def test_foreign_wrappers_above_ours_survive(
        self, server: ScriptedModelServer, shared: Any
    ) -> None:
        seen: list[str] = []

        def foreign(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            seen.append(getattr(wrapped, "__name__", "?"))
            return wrapped(*args, **kwargs)

        originals = [(owner, name, vars(owner).get(name)) for owner, name in self.patched()]
        for owner, name in self.patched():
            wrapt.wrap_function_wrapper(owner, name, foreign)
        recording = Recording("foreign", server.url)
        try:
            with recording.active():
                await self.tool_agent(shared, "how much?", add, False)
            assert len(recording.calls) == 2 and seen
            self.instrumentor().uninstrument()
            seen.clear()
            with recording.active():
                await self.tool_agent(shared, "how much?", add, False)
            assert len(recording.calls) == 2 and seen  # ours is silent, theirs goes on
        finally:
            for owner, name, ours in originals:
                below = getattr(ours, "__wrapped__", ours)
                setattr(owner, name, below)
