"""The contract of every kind of environment: what the last step earns is never lost where the turns end."""

from __future__ import annotations

import pytest
from agl_testing import ScriptedModelServer
from contract.running import rolled_out

from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.types import Record, Rollout


class TurnLimit:
    """Inherit it in a test of the environment, and say how it is played. Each step earns one, and the episode
    would go on behind the limit.
    """

    earned = "reward"
    """The reward that counts the steps, by its name."""
    longest = 3
    """The most turns that an episode may have; a kind of a single answer has one."""

    async def limited(self, turns: int) -> tuple[Rollout, Record, str]:
        """Play with ``turns`` turns, each of which does what earns one."""
        raise NotImplementedError

    async def play(self, agent: object, task: object, answer: object) -> tuple[Rollout, Record, str]:
        """One rollout with a scripted model."""
        store = SQLiteStore(":memory:")
        try:
            async with ScriptedModelServer(answer) as engine:  # type: ignore[arg-type]
                return await rolled_out(agent, task, store, engine)
        finally:
            await store.close()

    @pytest.mark.parametrize("which", ["one", "longest"])
    async def test_what_the_last_step_earns_is_not_lost(self, which: str) -> None:
        turns = 1 if which == "one" else self.longest
        rollout, record, why = await self.limited(turns)
        assert rollout.status == "succeeded", why
        assert [verdict.kind for verdict in verdicts(record).values()] == ["exact"] * turns
        assert [one.value for one in record.rewards if one.name == self.earned] == [float(turns)]
