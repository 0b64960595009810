"""The rollouts of the step that is trained next, and with ``ahead`` those of the steps after it.

While a driver updates, the rollouts of later steps run on, so that neither machine waits for the other.
Invariants: which tasks a step has, in which order and with which seeds, does not depend on ``ahead``; of step
``n`` nothing is queued before step ``n - ahead`` is collected, so none of its calls is more than ``ahead``
versions old when it is trained; nothing beyond the run's last step is queued; a rollout that will not be
trained does not go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from agentlightning.algorithms.work import RESUMED, begin
from agentlightning.store.base import Conflict, Store
from agentlightning.types import Rollout, RolloutStatus

log = logging.getLogger(__name__)

Groups = list[list[Rollout]]
"""The rollouts of each task."""
ENDED = "cancelled: the run ended before this step was trained"
"""Reason of the rollouts that a run leaves behind when it ends early; they are made again when it goes on."""
PATIENCE = 10.0
"""Seconds that the end of a run waits for a store to take note."""
UNDER_WAY = [status for status in RolloutStatus if not status.final]


class Upcoming:
    """The steps of the run ``run_id`` from the first that :meth:`turn` is asked for up to ``steps``.

    ``make``: the groups of a step; asked once for each step, in their order.
    """

    def __init__(
        self, store: Store, run_id: str, make: Callable[[int], Groups], *, steps: int, ahead: int = 0
    ) -> None:
        self._store, self._run, self._make = store, run_id, make
        self._steps, self._ahead = steps, ahead
        self._next: int | None = None
        """The first step of which nothing is queued."""
        self._open: dict[int, Groups] = {}
        """What was queued of each step, until its turn is over."""

    async def turn(self, step: int) -> Groups:
        """It is the turn of ``step``: its groups, queued; so are those after it, as far as ``ahead`` goes."""
        first = self._next is None
        begun = step if self._next is None else self._next
        for later in range(begun, min(step + self._ahead, self._steps - 1) + 1):
            self._next = later + 1
            self._open[later] = self._make(later)
            await begin(self._store, _flat(self._open[later]))
        if first:
            await self._leave_behind()
        return self._open[step]

    async def add(self, step: int, groups: Groups) -> None:
        """Queue further groups of a step whose turn it is."""
        self._open[step] = [*self._open[step], *groups]
        await begin(self._store, _flat(groups))

    async def standing(self, step: int) -> dict[str, float]:
        """How far the rollouts of a step have come before its turn, as metrics; empty without ``ahead``."""
        if not self._ahead:
            return {}
        ids = [rollout.rollout_id for rollout in _flat(self._open.get(step, []))]
        known = await self._store.query_rollouts(rollout_ids=ids, limit=len(ids)) if ids else []
        return {
            "ahead/started": float(sum(rollout.attempts > 0 for rollout in known)),
            "ahead/ended": float(sum(rollout.status.final for rollout in known)),
        }

    def over(self, step: int) -> None:
        """The rollouts of ``step`` have been waited for."""
        self._open.pop(step, None)

    async def end(self) -> int:
        """Cancel what is under way; of how many rollouts. It says so in the log where the store is gone."""
        ids = [rollout.rollout_id for groups in self._open.values() for rollout in _flat(groups)]
        self._open.clear()
        if not ids:
            return 0
        try:
            async with asyncio.timeout(PATIENCE):
                known = await self._store.query_rollouts(rollout_ids=ids, status=UNDER_WAY, limit=len(ids))
                return await self._cancel(known, ENDED)
        except Exception as error:
            log.warning("%d rollouts of a run that ends were not cancelled in its store: %r", len(ids), error)
            return 0

    async def _leave_behind(self) -> None:
        """Stop what an earlier life of the run had under way for steps whose turn has not come: it would run
        now, and again in its turn.
        """
        mine = {rollout.rollout_id for groups in self._open.values() for rollout in _flat(groups)}
        after: str | None = None
        while page := await self._store.query_rollouts(
            run_id=self._run, mode="train", status=UNDER_WAY, after=after
        ):
            after = page[-1].rollout_id
            await self._cancel([rollout for rollout in page if rollout.rollout_id not in mine], RESUMED)

    async def _cancel(self, rollouts: Sequence[Rollout], reason: str) -> int:
        """Cancel rollouts; how many of them had not just ended."""
        cancelled = 0
        for rollout in rollouts:
            try:
                await self._store.update_rollout(rollout.rollout_id, RolloutStatus.CANCELLED, reason=reason)
            except Conflict:
                continue
            cancelled += 1
        return cancelled


def _flat(groups: Groups) -> list[Rollout]:
    return [rollout for group in groups for rollout in group]
