"""Queue rollouts: once, again when a run resumes, and with ``async_steps`` those of later steps beforehand.

During an update, the rollouts of later steps run, so that engine and trainer do not wait for each other.
Invariants: every rollout ends with an attempt that began after the last resume, and attempts from before it
stay on record and are not used; which tasks a step has, in which order and with which seeds, does not depend
on ``async_steps``; of step ``n`` nothing is queued before step ``n - async_steps`` is collected, so none of
its calls is more than ``async_steps`` versions old when it is trained; nothing beyond the run's last step is
queued; rollouts that will not be trained are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentlightning.store.base import Conflict, Store
from agentlightning.types import Record, Rollout, RolloutStatus

log = logging.getLogger(__name__)

RESUMED = "cancelled: the run broke off and went on"
"""Reason of attempts from before the resume."""
UNFINISHED = [status for status in RolloutStatus if not status.final]
"""Statuses of unfinished rollouts."""
TaskGroups = list[list[Rollout]]
"""The rollouts of each task."""
Read = Callable[[Sequence[str]], Awaitable[Sequence[Record]]] | None
"""Returns the records of whole groups by rollout id; ``None``: as the store has them."""
ENDED = "cancelled: the run ended before this step was trained"
"""Reason of rollouts that a run cancels when it ends early; a resume queues them again."""
PATIENCE = 10.0
"""Seconds that the end of a run waits for the store."""


class RunEnded(RuntimeError):
    """Raised when a step is requested after the run has ended."""


class Prefetcher:
    """Queues the rollouts of a run's steps, up to ``steps``.

    ``make`` returns the groups of a step; it is called once for each step, in order.
    """

    def __init__(
        self, store: Store, make: Callable[[int], TaskGroups], *, steps: int, async_steps: int = 0
    ) -> None:
        self._store, self._make = store, make
        self._steps, self._async_steps = steps, async_steps
        self._next: int | None = None
        """The first step that is not queued."""
        self._open: dict[int, TaskGroups] = {}
        """Queued groups of each step until it is finished."""
        self._ended = False

    def state(self) -> dict[str, Any]:
        """Return its part of a checkpoint: nothing, since a step has the tasks of its own batch."""
        return {}

    def first_batch(self, first_step: int) -> int:
        """Return the number of the first batch of tasks that a run needs from ``first_step`` on."""
        return first_step

    async def take(self, step: int) -> TaskGroups:
        """Queue the groups of ``step`` and of the next ``async_steps`` steps; return those of ``step``."""
        begun = step if self._next is None else self._next
        for later in range(begun, min(step + self._async_steps, self._steps - 1) + 1):
            self._check()
            self._next = later + 1
            self._open[later] = self._make(later)
            await self._queue(self._open[later])
        self._check()
        return self._open[step]

    async def add(self, step: int, groups: TaskGroups) -> None:
        """Queue extra groups of the present step."""
        self._check()
        self._open[step] = [*self._open[step], *groups]
        await self._queue(groups)

    async def progress(self, step: int) -> dict[str, float]:
        """Return metrics: how many rollouts of a step started and ended before its turn; none without
        ``async_steps``.
        """
        if not self._async_steps:
            return {}
        ids = [rollout.rollout_id for rollout in _flat(self._open.get(step, []))]
        known = await self._store.query_rollouts(rollout_ids=ids, limit=len(ids)) if ids else []
        return {
            "async/started": float(sum(rollout.attempts > 0 for rollout in known)),
            "async/ended": float(sum(rollout.status.final for rollout in known)),
        }

    def finish(self, step: int) -> None:
        """Forget ``step``, whose rollouts have ended. Raise :class:`RunEnded` if they were cancelled."""
        self._check()
        self._open.pop(step, None)

    async def end(self) -> int:
        """Cancel the rollouts under way and return how many. Log a warning if the store is gone.

        A driver's own task that still calls :meth:`take` gets :class:`RunEnded`.
        """
        self._ended = True
        ids = [rollout.rollout_id for rollout in _flat(self._under_way())]
        self._open.clear()
        if not ids:
            return 0
        try:
            async with asyncio.timeout(PATIENCE):
                known = await self._store.query_rollouts(rollout_ids=ids, status=UNFINISHED, limit=len(ids))
                return await cancel(self._store, known, ENDED)
        except Exception as error:
            log.warning("%d rollouts of a run that ends were not cancelled in its store: %r", len(ids), error)
            return 0

    def _under_way(self) -> TaskGroups:
        """Return the queued groups that are in no finished step."""
        return [group for groups in self._open.values() for group in groups]

    async def _queue(self, groups: TaskGroups) -> None:
        await enqueue(self._store, _flat(groups))
        if self._ended:  # :meth:`end` came meanwhile and may have missed them
            await cancel(self._store, _flat(groups), ENDED)

    def _check(self) -> None:
        if self._ended:
            raise RunEnded("the run has ended: its rollouts were cancelled, and no step is made of them")


def _flat(groups: TaskGroups) -> list[Rollout]:
    return [rollout for group in groups for rollout in group]


async def enqueue(store: Store, rollouts: Sequence[Rollout]) -> list[str]:
    """Queue ``rollouts`` and return their ids. Rollouts that began before a resume are queued again, with
    the present settings.
    """
    known = await store.enqueue_many_rollouts(rollouts)
    for given, there in zip(rollouts, known, strict=True):
        if there.config != given.config:
            await store.update_rollout(there.rollout_id, config=given.config)
    begun = [r.rollout_id for r in known if r.attempts or r.status.final]
    if begun:
        await store.requeue_rollouts(begun, reason=RESUMED)
    return [r.rollout_id for r in known]


async def cancel_leftovers(store: Store, run_id: str) -> int:
    """Cancel unfinished rollouts from before a resume, so that no worker runs them too early; return how
    many. Their steps and evaluations queue them again. Rollouts of a user's algorithm are left to it.
    """
    cancelled = 0
    after: str | None = None
    while page := await store.query_rollouts(run_id=run_id, status=UNFINISHED, after=after):
        after = page[-1].rollout_id
        ours = [rollout for rollout in page if (rollout.group_id or "").startswith(f"{run_id}/")]
        cancelled += await cancel(store, ours, RESUMED)
    return cancelled


async def cancel(store: Store, rollouts: Sequence[Rollout], reason: str) -> int:
    """Cancel rollouts; return how many had not ended by themselves."""
    cancelled = 0
    for rollout in rollouts:
        try:
            await store.update_rollout(rollout.rollout_id, RolloutStatus.CANCELLED, reason=reason)
        except Conflict:
            continue
        cancelled += 1
    return cancelled
