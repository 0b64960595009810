"""Episodes through the whole line: reset, gateway, store, and the environment's rewards."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from contract.running import rolled_out
from contract.turn_limit import TurnLimit

from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.types import Record, Rollout
from agl_openenv import play, tasks
from plugins.openenv.tests import protocol

INSTALLED = importlib.util.find_spec("openenv") is not None


@pytest.fixture(params=["protocol", "openenv"])
async def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The counting environment: a server of the protocol, and OpenEnv's own, as a child process."""
    if request.param == "openenv":
        if not INSTALLED:
            pytest.skip("openenv is not installed; make test-openenv")
        monkeypatch.syspath_prepend(str(Path(__file__).parent / "environments"))
        yield "counting_server:app"
    else:
        async with protocol.serving(protocol.Counting()) as url:
            yield url


def count(body: dict[str, Any]) -> str:
    """Say the next number as JSON, rude words to who wants 7, and always 2 to who wants 5."""
    shown = json.loads(next(m["content"] for m in reversed(body["messages"]) if "so_far" in m["content"]))
    assert set(body["response_format"]["json_schema"]["schema"]["properties"]) == {"number", "polite"}
    if shown["wanted"] == 7 and len(body["messages"]) == 1:
        return "never"
    return json.dumps({"number": 2 if shown["wanted"] == 5 else len(shown["so_far"]) + 1})


async def run(task: dict[str, Any]) -> tuple[Rollout, Record, str]:
    """One rollout of a task, its record, and why it failed."""
    store = SQLiteStore(":memory:")
    try:
        async with ScriptedModelServer(count) as engine:
            return await rolled_out(play, task, store, engine)
    finally:
        await store.close()


def named(record: Record, name: str) -> list[float]:
    return [reward.value for reward in record.rewards if reward.name == name]


async def test_an_episode_is_exact_and_each_step_has_its_reward(environment: str) -> None:
    [task] = tasks(environment, resets=[{"seed": 3}])
    rollout, record, why = await run(task)
    assert rollout.status == "succeeded", why
    assert [verdict.kind for verdict in verdicts(record).values()] == ["exact"] * 3
    assert named(record, "reward") == [3.0] and named(record, "step") == [1.0] * 3
    assert [named(record, name) for name in ("steps", "refused", "done")] == [[3.0], [0.0], [1.0]]
    of = {reward.call_id or reward.span_id for reward in record.rewards if reward.name == "step"}
    assert len(of) == 3 and None not in of


async def test_a_wrong_action_ends_the_episode_with_its_reward(environment: str) -> None:
    [task] = tasks(environment, resets=[{"seed": 5}])
    _, record, _ = await run(task)
    assert named(record, "reward") == [0.0] and named(record, "done") == [1.0]


async def test_an_answer_that_is_no_action_is_told_and_counted(environment: str) -> None:
    [task] = tasks(environment, resets=[{"seed": 7}], max_steps=3)
    rollout, record, why = await run(task)
    assert rollout.status == "succeeded", why
    assert [named(record, name) for name in ("reward", "steps", "refused", "done")] == [
        [2.0],
        [3.0],
        [1.0],
        [0.0],
    ]
    assert "not allowed" in record.calls[1].request["messages"][-1]["content"]


class TestTurnLimit(TurnLimit):
    @pytest.fixture(autouse=True)
    def served(self, environment: str) -> None:
        self.environment = environment

    async def limited(self, turns: int) -> Any:
        [task] = tasks(self.environment, resets=[{"seed": 9}], max_steps=turns)
        return await self.play(play, task, count)


@pytest.mark.parametrize(
    "seed, said", [(13, "thirteen is unlucky"), (99, "gave no reward in 2 steps")], ids=["reset", "no-reward"]
)
async def test_an_environment_that_fails_fails_the_attempt(environment: str, seed: int, said: str) -> None:
    [task] = tasks(environment, resets=[{"seed": seed}], max_steps=2)
    rollout, record, why = await run(task)
    assert rollout.status == "failed" and said in why and not record.rewards


@pytest.mark.skipif(not INSTALLED, reason="openenv is not installed; make test-openenv")
async def test_an_app_that_does_not_start_fails_the_attempt() -> None:
    [task] = tasks("no_such_module:app", count=1)
    rollout, _, why = await run(task)
    assert rollout.status == "failed" and "'no_such_module:app' ended with status" in why
