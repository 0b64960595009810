"""Contract: every call is recorded exactly: of tool agents, of teams, structured, with several choices."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.keys import CONTEXT_KEY
from agl_testing import ScriptedModelServer
from agl_testing.contract.features import STREAM, feature, lacking
from agl_testing.contract.hooks import AdapterHooks, add
from agl_testing.contract.recording import Recording, assert_each_exact, assert_exact
from agl_testing.contract.script import SOLVER, TEAM
from agl_testing.contract.tally import CountedServer


class StructuredAnswer(BaseModel):
    """The answer."""

    value: int


class CallsContract(AdapterHooks):
    """Tests of one agent, one team, and one call of each kind."""

    @STREAM
    @feature("async", "tools")
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
    @feature("async", "multi-agent")
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

    async def test_every_entry_records_its_agent_once(self, server: ScriptedModelServer, shared: Any) -> None:
        """Entries call one another: a turn is one span, whichever of them the program called."""
        entries = self.entries(shared)
        if not entries:
            lacking("a list of its entries")
        spans: set[tuple[str, ...]] = set()
        for name, run in entries.items():
            before, recording = len(server.log), Recording(name, server.url)
            with recording.active():
                await run("a poem")
            assert recording.agents() == [SOLVER], name
            turns = [s for s in recording.spans if s.attributes.get(semconv.OPERATION_NAME) == "invoke_agent"]
            spans.add(tuple(span.attributes[semconv.AGENT_NAME] for span in turns))
            assert spans in ({(SOLVER,)}, {()}), f"{name}: {spans}"  # a node of a graph is a tag alone
            assert_exact(recording, server.log[before:])
        assert COUNTS.snapshot() == {}

    @feature("sync", "tools")
    def test_the_blocking_face(self) -> None:
        with CountedServer(self.say, ids="always") as server:
            client = self.client(server.url, CONTEXT_KEY)
            recording = Recording("sync", server.url)
            with recording.active():
                answer = self.tool_agent_sync(client, "how much?", add, False)
            if answer is None:
                lacking("a blocking face")
            assert_exact(recording, server.log)
            assert recording.agents() == [SOLVER, SOLVER]

    @STREAM
    @feature("structured")
    async def test_structured_output_is_exact(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recording = Recording("typed", server.url)
        with recording.active():
            answer = await self.structured(shared, "how much?", StructuredAnswer, stream)
        if answer is None:
            lacking("structured output" + " that streams" * stream)
        assert StructuredAnswer.model_validate(answer) == StructuredAnswer(value=42)
        assert set(recording.agents()) == {SOLVER}
        assert any(x.body.get("response_format") or x.body.get("tools") for x in server.log)
        assert_exact(recording, server.log)

    async def test_several_choices_are_several_spans(self, server: ScriptedModelServer, shared: Any) -> None:
        server.reply = lambda body: ["one", "two and more", "three"]
        recording = Recording("n", server.url)
        with recording.active():
            if not await self.several(shared, "a poem", 3):
                lacking("several answers to one request")
        (exchange,) = server.log
        assert exchange.body["n"] == 3
        assert [span.attributes[semconv.CHOICE] for span in recording.calls] == [0, 1, 2]
        assert_each_exact(recording, server.log)

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
            assert str(recording.context.key) not in str(exchange.headers)
