"""Which reward counts: the one that the agent returns, or those that it emits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentlightning import emit_reward
from agentlightning.capture import delivery
from agentlightning.credit.rewards import resolve
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import Record, RolloutConfig


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


def emits(task: Any) -> None:
    emit_reward(0.3)


def emits_and_returns(task: Any) -> float:
    emit_reward(0.3)
    return 1.0


def emits_names(task: Any) -> float:
    emit_reward(0.7, name="style")
    emit_reward(0.2, agent="judge")
    return 1.0


async def ran(store: Store, agent: Callable[..., Any], **config: Any) -> Record:
    made = await store.enqueue_rollout(1, config=RolloutConfig(**config))
    await asyncio.wait_for(Runner(agent, store, RunnerSection()).serve(limit=1), 60)
    (record,) = await store.records([made.rollout_id])
    return record


async def test_the_returned_reward_counts(store: Store) -> None:
    record = await ran(store, emits_and_returns)
    assert resolve(record).final == 1.0
    assert [(r.value, r.returned) for r in record.rewards] == [(0.3, False), (1.0, True)]
    assert (await store.counts())["refused"] == {"reward-beside-the-returned": 1}


async def test_emitted_ones_count_where_nothing_is_returned(store: Store) -> None:
    assert resolve(await ran(store, emits)).final == 0.3
    assert "refused" not in await store.counts()


async def test_emitted_ones_of_an_agent_without_trust_do_not_count_beside_the_returned(store: Store) -> None:
    found = resolve(await ran(store, emits_names, trusted=False))
    assert (found.final, found.by_name, found.agents) == (1.0, {"reward": 1.0}, {})
    assert found.missing == {"by-agent": 2}


async def test_rewards_of_other_names_and_targets_stand(store: Store) -> None:
    found = resolve(await ran(store, emits_names))
    assert (found.final, found.by_name, found.agents) == (1.0, {"style": 0.7, "reward": 1.0}, {"judge": 0.2})


async def test_the_clock_of_the_agent_decides_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the agent shows 2096 first, and then goes back."""
    times = iter((4e9, 3e9, 2.0, 1.0))
    monkeypatch.setattr(delivery, "time", SimpleNamespace(time=lambda: next(times)))

    def agent(task: Any) -> None:
        for value in (0.1, 0.2, 0.9):
            emit_reward(value)

    record = await ran(store, agent)
    assert [r.value for r in record.rewards] == [0.1, 0.2, 0.9]
    assert resolve(record).final == 0.9
