"""Contract: the same, on the local engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from agl_testing.contract.features import STREAM, feature
from agl_testing.contract.hooks import AdapterHooks, add
from agl_testing.contract.script import SOLVER, TEAM
from agl_testing.contract.tally import TALLY
from agl_testing.contract.through_gateway import leased_attempt

from agentlightning.keys import CONTEXT_KEY


class LocalEngineContract(AdapterHooks):
    """Ids and logprobs of a real engine."""

    @STREAM
    @feature("tools", "multi-agent")
    async def test_on_the_local_engine_every_call_is_exact(self, tmp_path: Path, stream: bool) -> None:
        """A policy of random weights calls the tool; the trainer's forward gives the recorded logprobs."""
        pytest.importorskip("agl_local")
        from contract.local_engine import policy, served, worst_gap

        async with served() as engine, leased_attempt(engine, tmp_path) as leased:
            client = self.client(leased.context.gateway or "", CONTEXT_KEY)
            with leased.active():
                await self.tool_agent(client, "how much?", add, stream)
                await self.team(client, "a poem", stream)
            await self.close(client)
            record, verdicts = await leased.finish()
            answered = engine.answered()
        exact = [verdict.kind for verdict in verdicts].count("exact")
        TALLY.elsewhere(made=answered, exact=exact)
        assert len(verdicts) == exact == answered == 4, verdicts
        assert [call.tags["agent"] for call in record.calls] == [SOLVER, SOLVER, *TEAM]
        assert record.calls[0].finish_reason == "tool_calls"
        assert worst_gap(policy(), record.calls) <= 1e-4
