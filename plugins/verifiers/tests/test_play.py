"""Environments of verifiers through the whole line: dataset, gateway, store, and their rubric's rewards."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers")

from agl_testing import ScriptedModelServer, tool_call
from contract.running import rolled_out

from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.types import Record, Rollout
from agl_verifiers import UnusableEnvironment, play, tasks
from agl_verifiers.agent import named_rewards

NAME = "agl-test-environments"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "environments"))


def reply(body: dict[str, Any]) -> Any:
    """Add by the tool where there is one, and say 3."""
    told = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return tool_call("add", {"a": 1, "b": 2}, "call_1") if body.get("tools") and not told else "is 3"


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
    first, second = tasks(NAME)
    assert first["input"]["answer"] == "3" and first["input"]["prompt"][-1]["content"] == "1+2"
    for task, value in ((first, 1.0), (second, 0.0)):
        rollout, record, _ = await run(engine, task)
        assert rollout.status == "succeeded"
        assert [verdict.kind for verdict in verdicts(record).values()] == ["exact"]
        assert rewards(record) == {"reward": value, "right": value, "num_turns": 1.0}


async def test_a_tool_environment_is_exact_in_every_turn(engine: ScriptedModelServer) -> None:
    task = tasks(NAME, arguments={"kind": "tool"})[0]
    rollout, record, _ = await run(engine, task)
    assert rollout.status == "succeeded"
    assert [verdict.kind for verdict in verdicts(record).values()] == ["exact", "exact"]
    log = engine.answered()
    assert [list(call.response_ids or ()) for call in record.calls] == [one.answers[0].ids for one in log]
    found = rewards(record)
    assert found["right"] == 1.0 and found["short"] == 0.25 and found["reward"] == 1.125
    assert found["add_calls"] == 1.0 and found["num_turns"] == 2.0


async def test_a_reward_function_that_fails_fails_the_attempt(engine: ScriptedModelServer) -> None:
    rollout, record, why = await run(engine, tasks(NAME, arguments={"kind": "broken"})[0])
    assert rollout.status == "failed" and not record.rewards
    assert "broken: KeyError" in why


async def test_an_error_of_the_model_fails_the_attempt() -> None:
    async with ScriptedModelServer(lambda body: 400) as refusing:
        rollout, record, why = await run(refusing, tasks(NAME)[0])
    assert rollout.status == "failed" and not record.rewards and "ModelError" in why


@pytest.mark.parametrize(("kind", "said"), [("compare", "compare the rollouts"), ("unscored", "scores no")])
def test_environments_without_rewards_of_one_rollout_are_refused(kind: str, said: str) -> None:
    with pytest.raises(UnusableEnvironment, match=said):
        tasks(NAME, arguments={"kind": kind})


def test_the_evaluation_set_limits_and_bad_splits() -> None:
    assert [task["input"]["answer"] for task in tasks(NAME, split="eval")] == ["4"]
    assert len(tasks(NAME, limit=1)) == 1
    with pytest.raises(ValueError, match="'train' and 'eval'"):
        tasks(NAME, split="test")  # type: ignore[arg-type]


def test_loading_leaves_the_signal_handlers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    tasks(NAME, arguments={"kind": "signals"})
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_function_called_reward_does_not_hide_the_sum() -> None:
    assert named_rewards(0.5, {"reward": 1.0, "n": 2.0}) == {"reward": 0.5, "rubric.reward": 1.0, "n": 2.0}
