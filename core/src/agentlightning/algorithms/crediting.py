"""Credit of a collected step: records are read in pages of whole groups, and credited in a thread.

Invariant: no record outlives its page. What stays of a step is its rows, its ledgers, and a fingerprint of
each rollout, so that memory grows with the rows of the step, and not also with the texts and spans of its
calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from agentlightning.algorithms.rollouts.prefetch import TaskGroups
from agentlightning.credit.assign import StepCredit
from agentlightning.credit.fingerprints.fingerprint import fingerprint_record
from agentlightning.store.base import Store
from agentlightning.store.pages import RECORD_PAGE
from agentlightning.types import Batch, Record, RolloutFingerprint


class StepCrediting:
    """Credits the rollouts of ``step`` as they are added. ``make``: returns the credit of a step, to which
    nothing is added yet.
    """

    def __init__(self, store: Store, make: Callable[[], StepCredit], *, run_id: str, step: int) -> None:
        self.store = store
        self.fingerprints: dict[str, RolloutFingerprint] = {}
        """Rollout id → fingerprint without rows, in the order in which the rollouts were added."""
        self._make = make
        self._credit = make()
        self._run_id = run_id
        self._step = step
        self._groups: TaskGroups = []

    async def add(self, groups: TaskGroups) -> Batch:
        """Read and credit the finished rollouts of groups; return the batch of all groups so far. If the
        recipe compares rollouts across groups, all of them are read and credited again, after a survey.
        """
        self._groups += groups
        if self._credit.spans_batch:
            groups, self._credit = self._groups, self._make()
            for page in group_pages(groups):
                await asyncio.to_thread(self._survey, await self.store.records(page))
        for page in group_pages(groups):
            await asyncio.to_thread(self._add, await self.store.records(page))
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
            if record.rollout.rollout_id not in self.fingerprints:
                self.fingerprints[record.rollout.rollout_id] = fingerprint_record(
                    record, run_id=self._run_id, step=self._step, policy="", version=None
                )


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
