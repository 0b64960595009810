"""Which reward counts: the one that the agent returns, or those that it emits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentlightning import Triplet, emit_reward
from agentlightning.capture import delivery
from agentlightning.credit.rewards import resolve
from agentlightning.decorator.agents import LitAgent
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.semconv import REWARD_SPAN, REWARD_VALUE
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import Record, RolloutConfig, Span


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


def returns_a_span(task: Any) -> list[Span]:
    emit_reward(0.3)
    return [Span(rollout_id="", attempt_id="", name=REWARD_SPAN, attributes={REWARD_VALUE: 1.0})]


def returns_a_transition(task: Any) -> list[Triplet]:
    return [Triplet(prompt_ids=[1], response_ids=[2], reward=1.0)]


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


async def test_transitions_of_an_agent_without_trust_are_refused(store: Store) -> None:
    record = await ran(store, returns_a_transition, trusted=False, max_attempts=1)
    assert record.rollout.status == "failed" and not record.calls
    assert "agent.trusted" in (record.rollout.reason or "")


async def test_returned_spans_are_returned_rewards(store: Store) -> None:
    assert resolve(await ran(store, returns_a_span)).final == 1.0


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


async def test_rewards_of_returned_transitions_are_returned(store: Store) -> None:
    def agent(task: Any) -> list[Triplet]:
        return [Triplet(prompt_ids=[1], response_ids=[2], logprobs=[-0.5], reward=0.5)]

    record = await ran(store, agent)
    assert [(r.value, r.returned, r.call_id) for r in record.rewards] == [
        (0.5, True, record.calls[0].call_id)
    ]


async def test_hooks_hear_of_the_returned_reward(store: Store) -> None:
    heard: list[float] = []

    class Agent(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
            return 1.0

        def on_trace_end(self, task: Any, rollout: Any, spans: list[Span]) -> None:
            heard.extend(s.attributes[REWARD_VALUE] for s in spans if s.name == REWARD_SPAN)

    record = await ran(store, Agent())  # type: ignore[arg-type]
    assert heard == [1.0] and [r.value for r in record.rewards] == [1.0]
