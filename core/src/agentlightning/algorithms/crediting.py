"""Credit of a step: records are read in pages of whole groups, and credited in a thread.

Where a recipe compares rollouts within their group alone, a group is credited as soon as it has ended, while
the rollouts of other groups still run; what is left to do when the last one ends is a small part of the step.

Invariants: what a step's credit is does not depend on the order in which groups ended; no record outlives its
page. What stays of a step is its rows, its ledgers, and a fingerprint of each rollout, so that memory grows
with the rows of the step, and not also with the texts and spans of its calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from agentlightning.algorithms.queue import Read, TaskGroups
from agentlightning.credit.assign import StepCredit
from agentlightning.credit.fingerprint import fingerprint_record
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.store.base import Store
from agentlightning.store.pages import RECORD_PAGE, pages
from agentlightning.types import Batch, Record, Rollout, RolloutFingerprint

LOOK = 0.5
"""Seconds between two looks for groups that have ended."""


class StepCrediting:
    """Credits the rollouts of ``step`` as they are added. ``make``: returns the credit of a step, to which
    nothing is added yet.
    """

    def __init__(
        self, store: Store, make: Callable[[], StepCredit], *, run_id: str, step: int, read: Read = None
    ) -> None:
        self.store = store
        self._read = read or store.records
        self.fingerprints: dict[str, RolloutFingerprint] = {}
        """Rollout id → fingerprint without rows, in the order of the step's groups."""
        self._make = make
        self._credit = make()
        self._reasons: dict[str, str] = {}
        """Rollout id → why it failed, of those that did."""
        self._run_id = run_id
        self._step = step
        self._groups: TaskGroups = []
        self._ahead: set[str] = set()
        """Rollout ids that were credited before all groups of the step had ended."""

    async def follow(self, groups: TaskGroups, over: asyncio.Event) -> None:
        """Credit groups as they end, until it is ``over``; none, if rollouts of several groups are compared.

        Looks at the store every :data:`LOOK` seconds. Set ``over`` and await this: it ends between two pages.
        """
        left = [] if self._credit.spans_batch else list(groups)
        while left and not await _is_set(over, LOOK):
            ids = [rollout.rollout_id for group in left for rollout in group]
            known = await self._rollouts(ids)
            ended = {rollout.rollout_id for rollout in known if rollout.status.final}
            ready = [group for group in left if all(one.rollout_id in ended for one in group)]
            left = [group for group in left if not all(one.rollout_id in ended for one in group)]
            await self.ended(ready, over)

    async def ended(self, groups: TaskGroups, over: asyncio.Event | None = None) -> None:
        """Credit groups that have ended, before :meth:`add`; none, if rollouts of several groups are
        compared. Ends between two pages once it is ``over``.
        """
        for page in group_pages([] if self._credit.spans_batch else groups):
            if over is not None and over.is_set():
                break
            await asyncio.to_thread(self._add, await self._read(page))
            self._ahead.update(page)

    @property
    def reason(self) -> str:
        """The commonest reason for which rollouts of the step failed; empty if none did."""
        mine = Counter(self._reasons[one] for one in self.fingerprints if one in self._reasons)
        return mine.most_common(1)[0][0] if mine else ""

    @property
    def outcomes(self) -> dict[str, float | None]:
        """Rollout id → what it earned, as it was credited; ``None``: left out."""
        return self._credit.outcomes

    async def _rollouts(self, ids: list[str]) -> list[Rollout]:
        """Return the rollouts with these ids, in pages."""
        found: list[Rollout] = []
        async for page in pages(self.store.query_rollouts, rollout_ids=ids):
            found += page
        return found

    async def add(self, groups: TaskGroups) -> Batch:
        """Read and credit the finished rollouts of groups; return the batch of all groups so far. If the
        recipe compares rollouts across groups, all of them are read and credited again, after a survey.
        """
        self._groups += groups
        if self._credit.spans_batch:
            groups, self._credit = self._groups, self._make()
            for page in group_pages(groups):
                await asyncio.to_thread(self._survey, await self._read(page))
        for page in group_pages([group for group in groups if group[0].rollout_id not in self._ahead]):
            await asyncio.to_thread(self._add, await self._read(page))
        ids = [rollout.rollout_id for group in self._groups for rollout in group]
        self.fingerprints = {one: self.fingerprints[one] for one in ids if one in self.fingerprints}
        return await asyncio.to_thread(self._credit.batch)

    def _survey(self, records: Sequence[Record]) -> None:
        self._credit.survey(records)
        self._fingerprint(records)

    def _add(self, records: Sequence[Record]) -> None:
        self._credit.add(records)
        self._fingerprint(records)

    def _fingerprint(self, records: Sequence[Record]) -> None:
        """Hash records when they are first read."""
        for record in records:
            rollout_id = record.rollout.rollout_id
            if rollout_id not in self.fingerprints:
                self.fingerprints[rollout_id] = fingerprint_record(
                    record, run_id=self._run_id, step=self._step, policy="", version=None
                )
                if (earned := rollout_reward(record)).failure is not None:
                    self._reasons[rollout_id] = earned.reason


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, so long at most; return whether it came."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def group_pages(groups: TaskGroups) -> Iterator[list[str]]:
    """Yield the rollout ids of whole groups, at least :data:`.RECORD_PAGE` a page but for the last."""
    page: list[str] = []
    for group in groups:
        page += [rollout.rollout_id for rollout in group]
        if len(page) >= RECORD_PAGE:
            yield page
            page = []
    if page:
        yield page
