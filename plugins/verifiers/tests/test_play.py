"""Environments of verifiers through the whole line: tasks, gateway, store, and the rewards of their tasks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers")

from agl_testing import ScriptedModelServer, tool_call
from contract.running import rolled_out
from contract.turn_limit import TurnLimit

from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.types import Record, Rollout
from agl_verifiers import UnusableEnvironment, play, tasks
from agl_verifiers.agent import named_rewards

pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning")
SUMS, TOOLS = "agl_test_environments", "agl_test_tools"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parent / "environments")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)  # the servers of tools are programs


def reply(body: dict[str, Any]) -> Any:
    """Add by the tool where there is one, and say 3."""
    told = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if not body.get("tools") or told:
        return "is 3"
    return tool_call(body["tools"][0]["function"]["name"], {"a": 1, "b": 2}, "call_1")


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(reply) as server:
        yield server


async def run(engine: ScriptedModelServer, task: Any) -> tuple[Rollout, Record, str]:
    """One rollout of a task, its record, and why it failed."""
    store = SQLiteStore(":memory:")
    try:
        return await rolled_out(play, task, store, engine)
    finally:
        await store.close()


def rewards(record: Record) -> dict[str, float]:
    assert all(reward.final and not reward.returned for reward in record.rewards)
    return {reward.name: reward.value for reward in record.rewards}


async def test_a_single_turn_is_exact_and_scored(engine: ScriptedModelServer) -> None:
    first, second = tasks(SUMS)
    assert first["input"]["answer"] == "3" and first["input"]["prompt"] == "1+2"
    for task, right in ((first, 1.0), (second, 0.0)):
        rollout, record, why = await run(engine, task)
        assert rollout.status == "succeeded", why
        assert [verdict.kind for verdict in verdicts(record).values()] == ["exact"]
        assert rewards(record) == {"reward": right + 0.125, "right": right, "short": 0.25, "length": 4.0}


@pytest.mark.slow
async def test_a_tool_is_exact_in_every_turn_and_its_state_is_a_rollouts_own(
    engine: ScriptedModelServer,
) -> None:
    found = await asyncio.gather(*(run(engine, tasks(TOOLS)[0]) for _ in range(2)))
    for rollout, record, why in found:
        assert rollout.status == "succeeded", why
        assert [verdict.kind for verdict in verdicts(record).values()] == ["exact", "exact"]
        assert rewards(record) == {"reward": 1.0, "right": 1.0, "added": 1.0}


async def test_when_turns_are_used_up_the_last_step_is_scored() -> None:
    def always(body: dict[str, Any]) -> Any:
        return tool_call("none_such", {}, "call_1")

    async with ScriptedModelServer(always) as engine:
        rollout, record, why = await run(engine, tasks(SUMS, max_turns=2)[0])
    assert rollout.status == "succeeded", why
    assert len(record.calls) == 2 and rewards(record)["reward"] == 0.5  # no text, so as short as can be


class TestTurnLimit(TurnLimit):
    earned = "added"

    async def limited(self, turns: int) -> Any:
        def always(body: dict[str, Any]) -> Any:
            return tool_call(body["tools"][0]["function"]["name"], {"a": 1, "b": 2}, "call_1")

        return await self.play(play, tasks(TOOLS, max_turns=turns)[0], always)


async def test_a_reward_function_that_fails_fails_the_attempt(engine: ScriptedModelServer) -> None:
    rollout, record, why = await run(engine, tasks(SUMS, arguments={"kind": "broken"})[0])
    assert rollout.status == "failed" and not record.rewards
    assert "no such key" in why


async def test_an_error_of_the_model_fails_the_attempt() -> None:
    async with ScriptedModelServer(lambda body: 400) as refusing:
        rollout, record, why = await run(refusing, tasks(SUMS)[0])
    assert rollout.status == "failed" and not record.rewards and "ProviderError" in why


@pytest.mark.parametrize(
    ("name", "said"), [("agl_test_contained", "need a container"), ("agl_test_endless", "without end")]
)
def test_environments_that_cannot_be_run_are_refused(name: str, said: str) -> None:
    with pytest.raises(UnusableEnvironment, match=said):
        tasks(name)


def test_limits_orders_and_what_is_no_number_of_turns() -> None:
    assert [task["input"]["prompt"] for task in tasks("agl_test_endless", limit=3)] == ["0", "1", "2"]
    assert sorted(task["input"]["prompt"] for task in tasks("agl_test_endless", limit=3, seed=1)) == list(
        "012"
    )
    with pytest.raises(ValueError, match="at least one turn"):
        tasks(SUMS, max_turns=0)


def test_loading_leaves_the_signal_handlers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    tasks(SUMS, arguments={"kind": "other"})
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_function_called_reward_does_not_hide_the_sum() -> None:
    assert named_rewards(0.5, {"reward": 1.0, "n": 2.0}) == {"reward": 0.5, "task.reward": 1.0, "n": 2.0}
