"""Contract: an attempt's record holds its tool spans, its rewards, and its calls with their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentlightning import semconv
from agentlightning.capture.emit import emit_reward, find_final_reward
from agentlightning.keys import CONTEXT_KEY
from agentlightning.types.tokens import TokenIds
from agl_testing import ScriptedModelServer
from agl_testing.contract.features import STREAM, feature
from agl_testing.contract.hooks import AdapterHooks, add
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.script import SOLVER, TEAM, TOOL
from agl_testing.contract.tally import TALLY, CountedServer
from agl_testing.contract.through_gateway import leased_attempt


class RecordsContract(AdapterHooks):
    """Tests of spans, rewards and verdicts."""

    @STREAM
    @feature("tools")
    async def test_tool_spans_have_arguments_and_results(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recording = Recording("spans", server.url)
        with recording.active():
            await self.tool_agent(shared, "how much?", add, stream)
        (tool,) = [s for s in recording.spans if s.attributes.get(semconv.OPERATION_NAME) == "execute_tool"]
        assert tool.attributes[semconv.TOOL_NAME] == TOOL
        assert tool.attributes[semconv.TOOL_CALL_ARGUMENTS] == self.arguments(stream)
        assert tool.attributes[semconv.TOOL_CALL_RESULT] == self.result("42")
        assert tool.attributes[semconv.AGENT_NAME] == SOLVER
        assert tool.attempt_id == recording.context.attempt_id
        first, second = recording.calls
        assert first.end_time <= tool.end_time <= second.end_time
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
        assert_exact(recording, server.log)

    @STREAM
    @feature("tools", "multi-agent")
    async def test_through_the_gateway_every_call_is_exact(self, tmp_path: Path, stream: bool) -> None:
        async with CountedServer(self.say) as engine, leased_attempt(engine, tmp_path) as leased:
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
            assert call.prompt_ids == TokenIds(exchange.prompt_ids)
            assert call.response_ids == TokenIds(answer.ids)
            assert call.logprobs == answer.logprobs
            TALLY.found(exchange, 0)
