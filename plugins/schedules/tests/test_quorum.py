"""Quorum on a real store and a real runner: who is slow, hangs or fails never holds up a group for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from core.runner.across import Event

import agl_schedules.plugin
from agentlightning import Trainer
from agentlightning.algorithms.schedule import schedule_of
from agentlightning.algorithms.tasks import group_rollouts
from agentlightning.credit.assign import assign
from agentlightning.plugins.manager import build
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore, Store
from agentlightning.train.config import from_fields
from agentlightning.types import Call, Recipe, Rollout, RolloutStatus
from agentlightning.types.base import ConfigError
from agentlightning.types.failure import (
    FAILURE_KINDS,
    SET_ASIDE_REASON,
    failure_kind,
    read_failure_table,
)
from agl_schedules.quorum import METRICS, wait_for_groups
from agl_schedules.settings import Quorum


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that are told to stop do so at once, instead of waiting for work a little longer."""
    monkeypatch.setattr("agentlightning.runner.runner.POLL", 0.02)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


class Agent:
    """Does what each sample of its task says: a number is returned, ``fail`` raises, ``hang`` waits."""

    def __init__(self) -> None:
        self.release = Event()
        self.home = asyncio.get_running_loop()
        self.stopped: asyncio.Queue[int] = asyncio.Queue()

    async def run(self, task: list[Any], rollout: Rollout) -> float:
        what = task[rollout.sample]
        if what == "fail":
            raise RuntimeError("no")
        if what == "hang":
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.home.call_soon_threadsafe(self.stopped.put_nowait, rollout.sample)
                raise
            return 1.0
        return float(what)


@asynccontextmanager
async def running(store: Store, agent: Agent) -> AsyncIterator[None]:
    task = asyncio.create_task(Runner(agent, store, RunnerSection(concurrency=64), heartbeat=0.02).serve())
    try:
        yield
    finally:
        agent.release.set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 300)


async def queue(store: Store, *tasks: Sequence[Any]) -> list[list[Rollout]]:
    """One group for each task, as many rollouts as it has samples."""
    groups: list[list[Rollout]] = []
    for number, task in enumerate(tasks):
        options: dict[str, Any] = {"run_id": "run", "seed": 1, "mode": "train", "resources_id": None}
        groups.append(group_rollouts([list(task)], len(task), name=str(number), **options))
        await store.enqueue_many_rollouts(groups[-1])
    return groups


async def statuses(store: Store, groups: list[list[Rollout]]) -> list[list[str]]:
    return [[str((await store.get_rollout_by_id(r.rollout_id)).status) for r in group] for group in groups]


async def gathered(store: Store, groups: list[list[Rollout]], *args: Any, **options: Any) -> SimpleNamespace:
    """The metrics, checked against the store: every rollout has ended, and is counted or left out."""
    metrics = await asyncio.wait_for(wait_for_groups(store, groups, *args, **options), 300)
    ids = [r.rollout_id for group in groups for r in group]
    ended = {r.rollout_id: r for r in await store.query_rollouts(rollout_ids=ids)}
    assert all(r.status.final for r in ended.values())
    cancelled = [i for i in ids if ended[i].status == RolloutStatus.CANCELLED]
    left_out = [i for i in ids if i in cancelled or SET_ASIDE_REASON in ended[i].metadata]
    counted = [i for i in ids if i not in left_out]
    assert set(metrics) == {*METRICS, "quorum/waited_seconds"} and metrics["quorum/waited_seconds"] >= 0
    found = SimpleNamespace(**{name.removeprefix("quorum/"): value for name, value in metrics.items()})
    assert found.stragglers + found.hedged == len(left_out) >= found.cancelled == len(cancelled)
    assert {failure_kind(ended[i].reason) for i in cancelled} <= {"straggler"}
    found.counted, found.left_out = counted, left_out
    return found


async def test_k_suffice_and_stragglers_are_stopped(store: Store) -> None:
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, [1, "hang", 0, "hang"], [1, 1, 0, "hang"])
        found = await gathered(store, groups, Quorum(k=2))
        for _ in range(3):  # those that hang are told so by their heartbeats
            await asyncio.wait_for(agent.stopped.get(), 300)
    assert found.stragglers == found.cancelled and found.hedged == 0
    assert found.stragglers in (3, 4) and found.short_groups == 2  # a third may be late
    assert await statuses(store, groups[:1]) == [["succeeded", "cancelled", "succeeded", "cancelled"]]


async def test_a_deadline_comes_first(store: Store) -> None:
    """Before it all are waited for: a group that has its ``n`` in time is whole. After it ``k`` suffice."""
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, [1, 1, "hang", 0], [1, 1, 1, 0])
        found = await gathered(store, groups, Quorum(k=3, deadline=0.2))
    assert (found.stragglers, found.short_groups) == (1, 1) and found.left_out == [groups[0][2].rollout_id]
    assert found.waited_seconds >= 0.2


async def test_the_deadline_waits_for_k(store: Store) -> None:
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, [1, "hang", "hang"])
        waiting = asyncio.create_task(gathered(store, groups, Quorum(k=2, deadline=0.01)))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        agent.release.set()
        found = await waiting
    assert len(found.counted) >= 2 and found.cancelled == len(found.left_out)


async def test_hedging_takes_the_first_n(store: Store) -> None:
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, ["hang", 1, 0, "fail", 1])  # 3 of them wanted, 2 extra
        found = await gathered(store, groups, Quorum(hedge=2))
    assert (found.hedged, found.stragglers, found.short_groups) == (1, 0, 0)
    assert found.left_out == [groups[0][0].rollout_id] and len(found.counted) == 4


async def test_who_is_first_but_too_many_is_set_aside(store: Store) -> None:
    """All of a group had ended when it was looked at: only n count, and credit leaves the others out."""
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, [1, 0, 1, 0, 1])
        ids = [r.rollout_id for r in groups[0]]
        await store.wait_for_rollouts(ids)
    found = await gathered(store, groups, Quorum(hedge=2))
    assert (found.hedged, found.cancelled, found.short_groups) == (2, 0, 0)
    records = await store.records(ids)
    for record in records:
        made = dict(prompt_ids=[1], response_ids=[2], logprobs=[-0.5])
        where = dict(rollout_id=record.rollout.rollout_id, attempt_id=record.attempt.attempt_id)  # type: ignore[union-attr]
        record.calls = [Call(call_id=f"c{record.rollout.sample}", **where, **made)]  # type: ignore[arg-type]
    batch = assign(records, Recipe(name="t"))
    assert batch.metrics["failed/straggler"] == 2 and batch.metrics["reward_count"] == 3
    assert {row.rollout_id for row in batch.rows} == set(found.counted)
    assert all(ledger.sums and ledger.made == 1 for ledger in batch.ledgers)


async def test_k_and_hedge_together(store: Store) -> None:
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, [1, "hang", 0, "hang", "hang", "hang"])  # n = 4, k = 2
        found = await gathered(store, groups, Quorum(k=2, hedge=2))
    assert (found.stragglers, found.hedged, found.cancelled, found.short_groups) == (2, 2, 4, 1)


async def test_a_quorum_out_of_reach_is_waited_out(store: Store) -> None:
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, ["fail", "fail", "hang", 1], ["fail"] * 4)
        waiting = asyncio.create_task(gathered(store, groups, Quorum(k=3, deadline=0.01)))
        await store.wait_for_rollouts([r.rollout_id for r in groups[1]])
        agent.release.set()
        found = await waiting
    assert found.left_out == [] and found.short_groups == 2


async def test_a_failure_with_a_reward_is_as_good(store: Store) -> None:
    agent = Agent()
    async with running(store, agent):
        groups = await queue(store, ["fail", 1, "hang"])
        table = read_failure_table({"agent-raised": -1.0})
        found = await gathered(store, groups, Quorum(k=2), failure=table)
    assert found.stragglers == 1 and found.left_out == [groups[0][2].rollout_id]


async def test_queued_rollouts_that_nobody_took_are_cancelled_too(store: Store) -> None:
    groups = await queue(store, [1, 1, 1])
    waiting = asyncio.create_task(gathered(store, groups, Quorum(k=1)))
    lease = await store.dequeue_rollout()
    assert lease is not None
    await store.update_attempt(lease.rollout.rollout_id, lease.attempt.attempt_id, "succeeded")  # type: ignore[arg-type]
    found = await waiting
    assert found.cancelled == 2 and await store.dequeue_rollout() is None


async def test_who_ends_while_it_is_being_stopped_counts(store: Store) -> None:
    """Between looking and cancelling a rollout may end: then it has ended, and there is room for it."""
    groups = await queue(store, [1, 1, 1])
    leases = [await store.dequeue_rollout() for _ in range(2)]

    class Late:
        """Lets the second rollout succeed just before it is cancelled."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def update_rollout(self, rollout_id: str, *args: Any, **fields: Any) -> Rollout:
            late = leases[1]
            if late is not None and rollout_id == late.rollout.rollout_id and args:
                await store.update_attempt(rollout_id, late.attempt.attempt_id, "succeeded")  # type: ignore[arg-type]
            return await store.update_rollout(rollout_id, *args, **fields)

    first = leases[0]
    assert first is not None
    await store.update_attempt(first.rollout.rollout_id, first.attempt.attempt_id, "succeeded")  # type: ignore[arg-type]
    found = await gathered(Late(), groups, Quorum(k=1))  # type: ignore[arg-type]
    assert len(found.counted) == 2 and (found.cancelled, found.stragglers) == (1, 1)


async def test_who_stops_waiting_leaves_nothing_behind(store: Store) -> None:
    groups = await queue(store, [1, 1])
    waiting = asyncio.create_task(wait_for_groups(store, groups, Quorum(k=1)))
    await asyncio.sleep(0)
    before = asyncio.all_tasks() - {waiting}
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not {t for t in asyncio.all_tasks() - before if not t.done()} - {asyncio.current_task()}
    assert await statuses(store, groups) == [["queuing", "queuing"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give k .*hedge"),
        ({"k": 0}, r"quorum\.k: .*greater than or equal to 1"),
        ({"k": "3"}, r"quorum\.k: .*valid integer"),
        ({"k": 3, "hegde": 1}, r"quorum\.hegde: .*Did you mean 'hedge'"),
        ({"hedge": -1}, r"quorum\.hedge: .*greater than or equal to 0"),
        ({"k": 2, "deadline": 0}, r"quorum\.deadline: .*greater than 0"),
        ({"k": 2, "deadline": float("nan")}, r"quorum\.deadline: .*finite"),
        ({"deadline": 3.0}, "deadline without quorum.k"),
    ],
)
def test_bad_quorums_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^Trainer: .*{words}"):
        from_fields({"quorum": given})


@pytest.mark.parametrize(("quorum", "words"), [(Quorum(k=3), "more than the 2"), (Quorum(hedge=2), "extra")])
async def test_a_quorum_must_fit_its_groups(store: Store, quorum: Quorum, words: str) -> None:
    groups = await queue(store, [1, 1])
    with pytest.raises(ConfigError, match=words):
        await wait_for_groups(store, groups, quorum)
    with pytest.raises(ConfigError, match=words):
        schedule_of(
            build([agl_schedules.plugin], discover=False),
            Recipe(name="t", group_size=2 - quorum.hedge),
            from_fields({"quorum": quorum}).training,
        )


@pytest.mark.slow
def test_reading() -> None:
    assert from_fields({"quorum": None}).training.quorum is None
    assert from_fields({"quorum": {"k": 6, "deadline": 30}}).training.quorum == Quorum(k=6, deadline=30.0)
    assert from_fields({"quorum": {"hedge": 2}}).training.quorum == Quorum(hedge=2)
    assert "straggler" in FAILURE_KINDS
    assert {*METRICS} == {f"quorum/{n}" for n in ("stragglers", "hedged", "cancelled", "short_groups")}


@pytest.mark.slow
def test_its_field_comes_back_as_it_was_given_and_bad_values_name_it() -> None:
    config = from_fields({"quorum": {"k": 2}, "steps": 3})
    assert Trainer.from_config(config).config is config and from_fields({}, config) == config
    assert config.training.quorum.k == 2
    with pytest.raises(ConfigError, match=r"Trainer: quorum\.k: .*greater than or equal to 1"):
        Trainer(quorum={"k": 0})
    with pytest.raises(ConfigError, match="Trainer: quorum: "):
        Trainer(quorum=3)
