"""Groups in flight on a real store: which a step takes, what is too old, what a checkpoint knows."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentlightning.algorithms.queue import ENDED, RunEnded, TaskGroups, cancel_leftovers
from agentlightning.algorithms.tasks import group_rollouts
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import AttemptedRollout, Rollout, RolloutStatus
from agl_schedules.finished_first import TOO_OLD, FinishedFirst

SIZE, SAMPLES = 2, 2


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


def make(batch: int) -> TaskGroups:
    """The groups of a batch: tasks are numbered throughout."""
    tasks = [SIZE * batch + at for at in range(SIZE)]
    found = group_rollouts(
        tasks, SAMPLES, name=f"train/{batch}", run_id="r", seed=1, mode="train", resources_id=None
    )
    return [found[i : i + SAMPLES] for i in range(0, len(found), SAMPLES)]


def groups_of(store: Store, **options: Any) -> FinishedFirst:
    given = {"steps": 4, "async_steps": 1, "batch_size": SIZE, "max_staleness": 1, **options}
    return FinishedFirst(store, make, **given)


class Worker:
    """Leases everything that is queued, and ends what it is told to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.leases: dict[tuple[int, int], AttemptedRollout] = {}
        """(task, sample) → the attempt under way."""

    async def lease(self) -> list[int]:
        """Lease the queue; return its tasks."""
        found = await self.store.dequeue_many_rollouts("w", 99)
        self.leases |= {(lease.rollout.input, lease.rollout.sample): lease for lease in found}
        return [lease.rollout.input for lease in found]

    async def end(self, *tasks: int, samples: tuple[int, ...] = (0, 1)) -> None:
        for task in tasks:
            for sample in samples:
                lease = self.leases.pop((task, sample))
                await self.store.update_attempt(
                    lease.rollout.rollout_id,
                    lease.attempt.attempt_id,
                    "succeeded",  # type: ignore[arg-type]
                )


class Step:
    """A step that is being taken; what it was told meanwhile."""

    def __init__(self, flights: FinishedFirst, step: int, version: int) -> None:
        self.ended: list[int] = []
        self.waiting: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            flights.take_finished(step, version, self._ended, self.waiting.set_result)
        )

    async def _ended(self, groups: TaskGroups) -> None:
        self.ended += [group[0].input for group in groups]

    async def tasks(self) -> list[int]:
        """Which tasks the step trains."""
        groups, self.metrics = await asyncio.wait_for(self.task, 300)
        assert all(len(group) == SAMPLES for group in groups)
        return [group[0].input for group in groups]


async def test_a_slow_group_holds_no_step_and_is_trained_when_it_has_ended(store: Store) -> None:
    flights, worker = groups_of(store, max_staleness=9), Worker(store)
    first = Step(flights, 0, 0)
    assert len(await first.waiting) == 4 * SAMPLES, "two steps' worth of groups are in flight"
    assert await worker.lease() == [0, 0, 1, 1, 2, 2, 3, 3]
    await worker.end(2)
    await worker.end(1, samples=(0,))  # half a group is none
    await worker.end(3)
    assert await first.tasks() == [2, 3] == sorted(first.ended)
    assert first.metrics == {
        "async/in_flight": 4, "async/finished": 0, "async/overtaken": 2, "async/started_again": 0,
        "async/age_max": 0,
    }  # fmt: skip
    flights.finish(0)
    second = Step(flights, 1, 1)
    await second.waiting
    assert await worker.lease() == [4, 4, 5, 5], "there is room for as many as were taken"
    await worker.end(5)
    await worker.end(1, samples=(1,))
    assert await second.tasks() == [1, 5]
    assert second.metrics["async/age_max"] == 1 and second.metrics["async/overtaken"] == 2
    flights.finish(1)
    third = Step(flights, 2, 2)
    await third.waiting
    assert await worker.lease() == [6, 6, 7, 7]
    await worker.end(6, 7, 4)
    # two of three that have ended: those that were drawn first
    assert set(await third.tasks()) <= {4, 6, 7}
    flights.finish(2)
    last = Step(flights, 3, 3)
    await last.waiting
    assert await worker.lease() == [], "nothing is drawn beyond what the run's steps train"
    await worker.end(0)
    trained = await last.tasks()
    assert 0 in trained and last.metrics["async/in_flight"] == 2 and last.metrics["async/finished"] == 1
    flights.finish(3)
    assert await flights.end() == 0
    assert {r.attempts for r in await store.query_rollouts(run_id="r")} == {1}


async def test_of_more_groups_than_a_step_trains_the_first_drawn_are_taken(store: Store) -> None:
    flights, worker = groups_of(store), Worker(store)
    step = Step(flights, 0, 0)
    await step.waiting
    await worker.lease()
    await worker.end(3)
    while not step.ended:
        await asyncio.sleep(0)
    await worker.end(0)  # the step is complete with it
    assert await step.tasks() == [0, 3]
    flights.finish(0)
    await worker.end(1, 2)
    again = Step(flights, 1, 1)
    await again.waiting
    await worker.lease()
    await worker.end(4, 5)
    assert await again.tasks() == [1, 2]
    assert again.metrics["async/finished"] == 2


async def test_what_would_be_too_old_is_started_again_and_what_waits_in_the_queue_is_not(
    store: Store,
) -> None:
    flights, worker = groups_of(store, async_steps=2, max_staleness=1), Worker(store)
    step = Step(flights, 0, 0)
    await step.waiting
    leased = await store.dequeue_many_rollouts("w", 5 * SAMPLES)  # tasks 0 to 4; 5 waits in the queue
    worker.leases = {(lease.rollout.input, lease.rollout.sample): lease for lease in leased}
    await worker.end(3, 4)
    assert await step.tasks() == [3, 4]
    flights.finish(0)
    await worker.end(0, samples=(0,))
    step = Step(flights, 1, 1)
    await step.waiting
    await worker.end(1, 2)  # begun with version 0, trained as version 1: as old as may be
    assert await step.tasks() == [1, 2] and step.metrics["async/started_again"] == 0
    flights.finish(1)
    step = Step(flights, 2, 2)
    await step.waiting  # group 0 is two versions old, also its rollout that has ended
    step.task.cancel()
    rollouts: dict[Any, list[Rollout]] = defaultdict(list)
    for rollout in await store.query_rollouts(run_id="r"):
        rollouts[rollout.input].append(rollout)
    assert [r.status for r in rollouts[0]] == [RolloutStatus.REQUEUING] * 2
    assert {r.status for r in rollouts[5]} == {RolloutStatus.QUEUING}
    attempts = [await store.query_attempts(r.rollout_id) for r in rollouts[0]]
    assert [[a.status for a in of] for of in attempts] == [["succeeded"], ["unresponsive"]]
    assert attempts[1][0].reason == TOO_OLD
    # what was started again is of the present version, and counts as such
    step = Step(flights, 2, 2)
    await step.waiting
    await worker.lease()
    await worker.end(0, 5)
    assert await step.tasks() == [0, 5] and step.metrics["async/age_max"] == 0
    again = await store.query_rollouts(rollout_ids=[r.rollout_id for r in rollouts[0]])
    assert [r.attempts for r in again] == [2, 2]


async def test_a_checkpoint_knows_the_groups_in_flight_and_each_is_trained_once(store: Store) -> None:
    flights, worker = groups_of(store, max_staleness=9), Worker(store)
    step = Step(flights, 0, 0)
    await step.waiting
    await worker.lease()
    await worker.end(1, 3)
    assert await step.tasks() == [1, 3]
    flights.finish(0)
    kept = flights.state()
    assert kept == {"groups": {"drawn": 4, "open": [0, 2]}}
    # another step, which no checkpoint knows; then a kill
    step = Step(flights, 1, 1)
    await step.waiting
    await worker.lease()
    await worker.end(0, 5)
    assert await step.tasks() == [0, 5]
    await cancel_leftovers(store, "r")
    again = groups_of(store, max_staleness=9, state=kept["groups"])
    assert again.first_batch(1) == 0 and again.state() == kept
    trained = []
    for number in (1, 2, 3):
        step = Step(again, number, number)
        await step.waiting
        leased = await worker.lease()
        await worker.end(*dict.fromkeys(leased))
        trained += await step.tasks()
        again.finish(number)
    assert sorted(trained) == [0, 2, 4, 5, 6, 7], "none is trained twice, and none is lost"
    assert again.state() == {"groups": {"drawn": 8, "open": []}}
    attempts = {r.input: r.attempts for r in await store.query_rollouts(run_id="r")}
    assert attempts == {0: 2, 1: 1, 2: 2, 3: 1, 4: 2, 5: 2, 6: 1, 7: 1}


async def test_the_end_cancels_all_that_is_in_flight(store: Store) -> None:
    flights, worker = groups_of(store), Worker(store)
    step = Step(flights, 0, 0)
    await step.waiting
    await worker.lease()
    await worker.end(0)
    assert await flights.end() == 3 * SAMPLES
    with pytest.raises(RunEnded):
        await step.tasks()
    found = await store.query_rollouts(run_id="r")
    assert {r.reason for r in found if r.status == RolloutStatus.CANCELLED} == {ENDED}
    assert all(r.status.final for r in found) and await flights.end() == 0


async def test_of_several_policies_the_oldest_counts(store: Store) -> None:
    flights, worker = groups_of(store, max_staleness=1), Worker(store)
    none: Any = lambda *_: None  # noqa: E731

    async def ended(groups: TaskGroups) -> None: ...

    taking = asyncio.create_task(flights.take_finished(0, {"a": 0, "b": 5}, ended, none))
    while not await worker.lease():
        await asyncio.sleep(0)
    await worker.end(0, 1)
    await asyncio.wait_for(taking, 300)
    flights.finish(0)
    await worker.end(2, 3)
    _, found = await flights.take_finished(1, {"a": 1, "b": 6}, ended, none)
    assert found["async/age_max"] == 1 and found["async/started_again"] == 0
    flights.finish(1)
    await worker.lease()
    taking = asyncio.create_task(flights.take_finished(2, {"a": 1, "b": 8}, ended, none))
    while not await worker.lease():
        await asyncio.sleep(0)
    await worker.end(4, 5)
    _, found = await asyncio.wait_for(taking, 300)
    assert found["async/started_again"] == 2 * SAMPLES and found["async/age_max"] == 2
