"""Scores of candidates: one rollout of each task, made once and kept.

Invariants: a candidate, a dataset and a position name one rollout, whose id is a function of them, so no task
is run twice with the same candidate; all candidates get the same seed for the same task; a rollout without a
reward (by the run's failure table) scores 0 among candidates, which are compared on the same tasks, and is
counted. Evaluations leave it out, as all do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from agl_gateway.budget.limits import BudgetSpent

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.evaluate import check_rewarded, summarise
from agentlightning.algorithms.queue import RESUMED, cancel
from agentlightning.algorithms.tasks import stable_seed
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.store.pages import pages
from agentlightning.types import Evaluation, Progress, Record, Rollout, RolloutStatus
from agentlightning.types.failure import FailureTable
from agl_apo.candidates import Candidate
from agl_apo.ledger import Ledger

SPENT = "cancelled: the budget of the prompt search is spent"
"""Reason of rollouts that were queued and not run. A later life with a larger budget queues them again."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task by its place: dataset and position."""

    split: str
    index: int
    content: Any


@dataclass(frozen=True, slots=True)
class Scored:
    """A task that was run with a candidate."""

    task: Task
    record: Record
    reward: float
    failed: bool
    """It has no reward, and counts as 0."""


def scored_of(record: Record, failure: FailureTable | None, task: Task | None = None) -> Scored:
    """Return the score of a finished rollout, by the failure table of the run. ``task``: its task, by default
    made of its input.
    """
    rollout, reward = record.rollout, rollout_reward(record, failure).value
    made = task or Task(str(rollout.group_id), 0, rollout.input)
    return Scored(made, record, 0.0 if reward is None else reward, reward is None)


def tasks_of(split: str, contents: Sequence[Any]) -> list[Task]:
    """Return the tasks of a dataset."""
    return [Task(split, index, content) for index, content in enumerate(contents)]


class Scorer:
    """Runs tasks with candidates. ``window``: rollouts queued at a time while a budget is counted."""

    def __init__(self, context: Context, ledger: Ledger, *, greedy: bool = True, window: int = 8) -> None:
        self._context, self._ledger = context, ledger
        self._greedy, self._window = greedy, window
        self.stage = ""
        """Prefix of datasets: the same tasks scored anew, with other weights, e.g. ``step-4/``."""
        self._scored: dict[str, Scored] = {}
        self.failed = 0
        """Rollouts without a reward, which scored 0."""
        self.reused = 0
        """Rollouts that an earlier life of the run had finished."""

    async def score(
        self, candidate: Candidate, tasks: Sequence[Task], *, held_back: bool = True
    ) -> list[Scored]:
        """Return the tasks' scores, in order. Raise :class:`BudgetSpent` if the budget does not suffice for
        all of them; those that were made are kept.
        """
        rollouts = [self._rollout(candidate, task) for task in tasks]
        new = {r.rollout_id: t for r, t in zip(rollouts, tasks, strict=True)}
        new = {key: task for key, task in new.items() if key not in self._scored}
        if new:
            fresh = [one for one in rollouts if one.rollout_id in new]
            await self._run(list({one.rollout_id: one for one in fresh}.values()), new, held_back)
        return [self._scored[one.rollout_id] for one in rollouts]

    def _rollout(self, candidate: Candidate, task: Task) -> Rollout:
        context, split = self._context, f"{self.stage}{task.split}"
        made = context.rollouts(
            [task.content],
            1,
            name=f"prompts/{candidate.candidate_id}/{split}/{task.index}",
            mode="val",
            resources_id=candidate.candidate_id,
            metadata={"greedy": self._greedy, "candidate": candidate.candidate_id, "split": split},
        )[0]
        return msgspec.structs.replace(made, seed=stable_seed(context.seed, "prompts", split, task.index))

    async def _run(self, rollouts: Sequence[Rollout], tasks: dict[str, Task], held_back: bool) -> None:
        there = {r.rollout_id: r for r in await self._known([r.rollout_id for r in rollouts])}
        done = [one for one in rollouts if (known := there.get(one.rollout_id)) and _done(known)]
        self.reused += len(done)
        await self._take(done, tasks)
        left = [one for one in rollouts if one.rollout_id not in self._scored]
        while left:
            self._ledger.require(held_back=held_back)
            room = self._ledger.rollouts_left(held_back=held_back)
            if room is not None and room < 1:
                raise BudgetSpent(
                    f"calls: a rollout may make {self._ledger.calls_of_rollout}, more than are left"
                )
            size = len(left) if not self._ledger.budget.limited else min(self._window, len(left))
            wave = left[: size if room is None else min(size, room)]
            await self._queue_and_wait(wave)
            await self._take(wave, tasks)
            left = left[len(wave) :]

    async def seal(self, name: str, result: dict[str, Any]) -> None:
        """Add the search to the run's chain: its result, and a fingerprint of each of its rollouts that
        ended, those of critic and editor too, so that `agl verify` knows them.
        """
        context, ids = self._context, []
        mine = (f"{context.run_id}/prompts/", f"{context.run_id}:prompts/")
        async for page in pages(context.store.query_rollouts, run_id=context.run_id):
            ids += [r.rollout_id for r in page if r.status.final and (r.group_id or "").startswith(mine)]
        await context.journal.entry("search", name, result, await context.store.records(ids))

    async def _known(self, ids: Sequence[str]) -> list[Rollout]:
        return await self._context.store.query_rollouts(rollout_ids=ids, limit=max(1, len(ids)))

    async def _queue_and_wait(self, rollouts: Sequence[Rollout]) -> None:
        """Queue rollouts and wait for their ends. If the wait is given up, they are cancelled."""
        context, store = self._context, self._context.store
        known = await store.enqueue_many_rollouts(rollouts)
        again = [r.rollout_id for r in known if (r.attempts or r.status.final) and not _done(r)]
        if again:
            await store.requeue_rollouts(again, reason=RESUMED)
        ids = [rollout.rollout_id for rollout in rollouts]
        context.plugins.ask("agl_progress", progress=Progress(what="prompts", rollouts=ids))
        try:
            await store.wait_for_rollouts(ids)
        except asyncio.CancelledError:
            await cancel(store, rollouts, SPENT)
            raise

    async def _take(self, rollouts: Sequence[Rollout], tasks: dict[str, Task]) -> None:
        """Read the records of finished rollouts, score them and count their calls."""
        store = self._context.store
        for record in await store.records([rollout.rollout_id for rollout in rollouts]):
            ended = record.rollout
            found = scored_of(record, self._context.evaluations.counting.failure, tasks[ended.rollout_id])
            self.failed += found.failed
            calls = record.calls
            if record.earlier:  # attempts before the last one cost as much
                calls = await store.query_calls(ended.rollout_id, None)
            self._ledger.count("agent", calls)
            self._scored[ended.rollout_id] = found

    async def evaluation(
        self, name: str, candidate: Candidate, tasks: Sequence[Task], *, held_back: bool = True
    ) -> Evaluation:
        """Score held-out tasks, write the evaluation into the run's chain, and notify trackers."""
        context, batch = self._context, f"prompts/{name}"
        scored = await self.score(candidate, tasks, held_back=held_back)
        records = [one.record for one in scored]
        seconds = sum((r.rollout.end_time or 0.0) - r.rollout.start_time for r in records)
        evaluation = summarise(name, records, seconds, context.evaluations.counting)
        check_rewarded(evaluation, records)
        version = context.driver.version if context.driver else 0
        entry = {"version": version, "evaluation": evaluation.model_dump()}
        if context.evaluations.made.get(batch) != entry:
            await context.keep_evaluation(batch, version, evaluation, records)
        return evaluation


def _done(rollout: Rollout) -> bool:
    """Whether a rollout ended by itself: those that were cancelled with their run are run again."""
    return rollout.status.final and rollout.status != RolloutStatus.CANCELLED
