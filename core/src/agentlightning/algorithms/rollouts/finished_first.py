"""Train the groups that are finished first, instead of waiting for a batch's slowest rollout.

A fixed number of groups is in flight; a step trains the first ``batch_size`` of them that have ended, and the
rest run on. Tasks are drawn in the order of the dataset, with the ids and seeds that they have in any run;
which step trains them depends on timing. Invariants: at most ``batch_size * (1 + async_steps)`` groups are in
flight; every drawn group is trained once, by the last step at the latest; no call of a trained rollout is
more than ``max_staleness`` versions old: a rollout that would be is started again under the present weights,
and its earlier attempt stays on record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentlightning.algorithms.rollouts.prefetch import Prefetcher, TaskGroups
from agentlightning.credit.eligibility import Versions
from agentlightning.store.base import Store
from agentlightning.types import Recipe, Rollout, RolloutStatus
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import TrainingSection

TOO_OLD = "cancelled: too old to be trained, and started again under newer weights"
"""Reason of attempts that a step could not train any more."""
STATE = "groups"
"""The name of this part in a checkpoint."""
IN_QUEUE = (RolloutStatus.QUEUING, RolloutStatus.REQUEUING)
"""Statuses of rollouts of which no attempt is under way: their next call is of the present version or later.
"""
PAGE = 500
"""Rollouts that are looked at in one query."""
SHORTEST_LOOK, LONGEST_LOOK, LOOK_SHARE = 0.02, 0.5, 0.1
"""Seconds between two looks at the store, and the share of the time that looking may take."""


@dataclass(slots=True)
class Flight:
    """A group in flight."""

    number: int
    """How many groups were drawn before it."""
    group: list[Rollout]
    since: dict[str, Versions]
    """Rollout id → a version before which none of its calls was made."""
    running: set[str]
    """Ids of the rollouts that have not ended."""


class FinishedFirst(Prefetcher):
    """Keeps groups in flight. ``make`` returns the groups of the next ``batch_size`` tasks; ``state``: that
    of a checkpoint (:meth:`state`), for a run that resumes.
    """

    def __init__(
        self,
        store: Store,
        make: Callable[[int], TaskGroups],
        *,
        steps: int,
        async_steps: int,
        batch_size: int,
        max_staleness: int,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(store, make, steps=steps, async_steps=async_steps)
        state = state or {"drawn": 0, "open": []}
        self._size, self._max_staleness = batch_size, max_staleness
        self._drawn: int = state["drawn"]
        """Groups drawn from the dataset, queued or not."""
        self._again: list[int] = list(state["open"])
        """Groups of the checkpoint that were in flight: they are queued before any other."""
        self._flights: dict[int, Flight] = {}
        self._batch: int = self.first_batch(0)
        """The next batch that :attr:`_make` returns."""
        self._made: dict[int, list[Rollout]] = {}
        """Made groups that are not queued yet, by number."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: how many groups were drawn, and which of them were not trained."""
        return {STATE: {"drawn": self._drawn, "open": sorted([*self._flights, *self._again])}}

    def first_batch(self, first_step: int) -> int:
        return min([*self._flights, *self._again, self._drawn]) // self._size

    async def take_finished(
        self,
        step: int,
        versions: Versions,
        ended: Callable[[TaskGroups], Awaitable[None]],
        waiting: Callable[[list[str]], None],
    ) -> tuple[TaskGroups, dict[str, float]]:
        """Return the first ``batch_size`` groups that have ended, by number, and metrics.

        ``versions``: those that are trained. ``ended`` is awaited with groups of the step as they end, and
        ``waiting`` is called once with the ids of all rollouts in flight.
        """
        self._check()
        await self._look(versions)
        age = max(
            (_age(versions, of) for one in self._flights.values() for of in one.since.values()), default=0
        )
        again = await self._start_again(versions)
        before = sum(not flight.running for flight in self._flights.values())
        await self._fill(versions)
        found = {
            "async/in_flight": float(len(self._flights)),
            "async/finished": float(before),
            "async/started_again": float(again),
            "async/age_max": float(age),
        }
        waiting([rollout.rollout_id for flight in self._flights.values() for rollout in flight.group])
        taken = await self._wait(ended)
        for flight in taken:
            del self._flights[flight.number]
        newest = max(flight.number for flight in taken)
        found["async/overtaken"] = float(sum(number < newest for number in self._flights))
        self._open[step] = [flight.group for flight in sorted(taken, key=lambda one: one.number)]
        return list(self._open[step]), found

    def _under_way(self) -> TaskGroups:
        return [*super()._under_way(), *(flight.group for flight in self._flights.values())]

    async def _wait(self, ended: Callable[[TaskGroups], Awaitable[None]]) -> list[Flight]:
        """Wait for the groups of a step; of those that have ended at one look, the first drawn come first."""
        clock = asyncio.get_running_loop().time
        taken: dict[int, Flight] = {}
        while True:
            began = clock()
            await self._look(None)
            self._check()  # whoever ends the run cancels what is waited for
            took = clock() - began
            left = self._size - len(taken)
            ready = [n for n, one in sorted(self._flights.items()) if n not in taken and not one.running]
            fresh = {number: self._flights[number] for number in ready[:left]}
            taken.update(fresh)
            if fresh:
                await ended([flight.group for flight in fresh.values()])
            if len(taken) == self._size:
                return list(taken.values())
            await asyncio.sleep(min(max(took / LOOK_SHARE, SHORTEST_LOOK), LONGEST_LOOK))

    async def _look(self, versions: Versions) -> None:
        """Note which rollouts have ended and, between two steps, which have not begun."""
        running = {i: flight for flight in self._flights.values() for i in flight.running}
        for ids in _parts(list(running), PAGE):
            for rollout in await self._store.query_rollouts(rollout_ids=ids, limit=PAGE):
                flight = running[rollout.rollout_id]
                if rollout.status.final:
                    flight.running.discard(rollout.rollout_id)
                elif versions is not None and rollout.status in IN_QUEUE:
                    flight.since[rollout.rollout_id] = versions

    async def _start_again(self, versions: Versions) -> int:
        """Queue the rollouts again that have become too old; return how many."""
        old = {
            rollout_id: flight
            for flight in self._flights.values()
            for rollout_id, since in flight.since.items()
            if _age(versions, since) > self._max_staleness
        }
        if old:
            await self._store.requeue_rollouts(list(old), reason=TOO_OLD)
        for rollout_id, flight in old.items():
            flight.since[rollout_id] = versions
            flight.running.add(rollout_id)
        return len(old)

    async def _fill(self, versions: Versions) -> None:
        """Queue groups until as many are in flight as may be; none beyond what the run's steps train."""
        room = self._size * (1 + self._async_steps) - len(self._flights)
        last = self._size * self._steps
        chosen, self._again = self._again[:room], self._again[room:]
        fresh = min(room - len(chosen), last - self._drawn)
        groups = {n: self._group(n) for n in [*chosen, *range(self._drawn, self._drawn + fresh)]}
        for number, group in groups.items():  # before they are queued: whoever ends the run cancels them
            since = {rollout.rollout_id: versions for rollout in group}
            self._flights[number] = Flight(number, group, since, set(since))
            self._drawn = max(self._drawn, number + 1)
        self._check()
        await self._queue(list(groups.values()))

    def _group(self, number: int) -> list[Rollout]:
        """Return a group by its number, which is not asked for again."""
        while number not in self._made:
            groups = self._make(self._batch)
            if len(groups) != self._size:
                raise ConfigError(f"batch {self._batch} has {len(groups)} groups, not {self._size}")
            self._made |= {self._batch * self._size + at: group for at, group in enumerate(groups)}
            self._batch += 1
        return self._made.pop(number)


def make_prefetcher(
    store: Store,
    make: Callable[[int], TaskGroups],
    training: TrainingSection,
    recipe: Recipe,
    progress: Mapping[str, Any],
) -> Prefetcher:
    """Return what queues the groups of a run's steps. ``make`` returns those of a batch of tasks;
    ``progress``: the state of the checkpoint that the run resumes from.
    """
    steps, ahead = training.steps, training.async_steps
    if training.order == "dataset":
        return Prefetcher(store, make, steps=steps, async_steps=ahead)
    return FinishedFirst(
        store,
        make,
        steps=steps,
        async_steps=ahead,
        batch_size=training.batch_size,
        max_staleness=recipe.max_staleness,
        state=progress.get(STATE),
    )


def _age(now: Versions, then: Versions) -> int:
    """Return how many versions have come; of named policies, of the one that has had most."""
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        return max((_age(of, then.get(name)) for name, of in now.items()), default=0)
    return now - then if isinstance(now, int) and isinstance(then, int) else 0


def _parts(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
