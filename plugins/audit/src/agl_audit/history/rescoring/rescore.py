"""Run a reward function over the rollouts of a run, and store what it gives as a version of their rewards.

A page of rollouts is read, scored and stored before the next: a rescoring that is interrupted goes on where
it stopped, and several processes share one run through a store server, each beginning at another page.

Invariants: rollouts, calls, original rewards and links stay as they are. Every rollout is scored, was scored
before, failed with a traceback, or is left out with a reason: the counts sum to the rollouts of the run.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.store.base import Store
from agentlightning.store.pages import pages, record_pages
from agentlightning.types import Record, RolloutStatus
from agentlightning.types.failure import FailureTable, failure_kind_of_end
from agl_audit.history.rescoring.function import RescoreFunction
from agl_audit.history.rescoring.trace import RolloutTrace, make_trace
from agl_audit.run import OpenRun
from agl_audit.store.reward_versions import (
    Rescored,
    RewardVersion,
    add_rescored,
    add_reward_version,
    failed_by_reward,
    rescored,
    with_rewards,
)
from agl_audit.store.trace import query_spans

SHOWN_ERRORS = 3


@dataclass(slots=True)
class Rescoring:
    """What a rescoring did."""

    version: RewardVersion
    failure: FailureTable
    """The run's failure table."""
    rollouts: int = 0
    """Rollouts of the run."""
    scored: int = 0
    """Rollouts that got rewards now, those for which the function said that there is none included."""
    already: int = 0
    """Rollouts that had rewards in this version: from before, or from another process."""
    no_reward: int = 0
    """Of those scored now: without a reward."""
    changed: int = 0
    """Of those scored now: with another outcome than the original."""
    errors: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    failures: list[Rescored] = field(default_factory=list)
    """The first errors, with their tracebacks."""
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    """Original and new outcomes of the rollouts scored now that have one."""

    def summary(self) -> dict[str, Any]:
        """Return the counts and means as JSON."""
        counts = ("rollouts", "scored", "already", "no_reward", "changed", "errors")
        about = ("run_id", "name", "function", "digest", "per", "agent", "code")
        return {
            **{name: getattr(self.version, name) for name in about},
            **{name: getattr(self, name) for name in counts},
            "left_out": dict(sorted(self.left_out.items())),
            "mean_before": _mean(self.before),
            "mean_after": _mean(self.after),
            "first_errors": [msgspec.to_builtins(one) for one in self.failures],
        }

    def add(self, record: Record, entry: Rescored) -> None:
        """Count an entry that was stored now."""
        if entry.error is not None:
            self.errors += 1
            if len(self.failures) < SHOWN_ERRORS:
                self.failures.append(entry)
            return
        self.scored += 1
        self.no_reward += not entry.rewards
        was = rollout_reward(record, self.failure).value
        now = rollout_reward(with_rewards(record, entry), self.failure).value
        self.changed += was != now
        self.before += [] if was is None else [was]
        self.after += [] if now is None else [now]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


async def rescore(
    run: OpenRun,
    function: RescoreFunction,
    *,
    name: str | None = None,
    dry_run: bool = False,
    concurrency: int = 1,
    order: int = 0,
    progress: Callable[[Rescoring], None] = lambda _: None,
) -> Rescoring:
    """Score the rollouts of ``run``. ``dry_run``: store nothing. ``concurrency``: rollouts at a time.
    ``order``: seed of the order of pages. Raise ``Conflict`` if ``name`` is a version of another function.
    """
    version = function.version(run.run_id, name)
    if not dry_run:
        version = await add_reward_version(run.store, version)
    found = Rescoring(version, run.failure_table)
    ids = [
        one.rollout_id async for page in pages(run.store.query_rollouts, run_id=run.run_id) for one in page
    ]
    found.rollouts = len(ids)
    todo = list(record_pages(ids))
    random.Random(order).shuffle(todo)
    for page in todo:
        await _score_page(run.store, page, function, found, dry_run, concurrency)
        progress(found)
    return found


async def _score_page(
    store: Store,
    page: Sequence[str],
    function: RescoreFunction,
    found: Rescoring,
    dry_run: bool,
    concurrency: int,
) -> None:
    name = found.version.name
    done = {one.rollout_id for one in await rescored(store, page, name) if one.error is None}
    found.already += len(done)
    records = []
    for record in await store.records([one for one in page if one not in done]):
        if (reason := left_out(record)) is not None:
            found.left_out[reason] += 1
        else:
            records.append(record)
    gate = asyncio.Semaphore(concurrency)

    async def score(record: Record) -> Rescored:
        async with gate:
            return await function.score(record, await read_trace(store, record), name)

    entries = await asyncio.gather(*map(score, records))
    for record, entry in zip(records, entries, strict=True):
        if dry_run or await add_rescored(store, [entry]):
            found.add(record, entry)
        else:
            found.already += 1


def left_out(record: Record) -> str | None:
    """Return why a rollout is not scored: it has not ended, or failed otherwise than for want of a reward."""
    status = record.rollout.status
    if not status.final:
        return "unfinished"
    if status == RolloutStatus.SUCCEEDED or failed_by_reward(record):
        return None
    ended = status if record.attempt is None or status == RolloutStatus.CANCELLED else record.attempt.status
    return failure_kind_of_end(ended, record.rollout.reason)


async def read_trace(store: Store, record: Record) -> RolloutTrace:
    """Return the trace of a record, with the spans of its last attempt."""
    if record.attempt is None:
        return make_trace(record)
    ids = record.rollout.rollout_id, record.attempt.attempt_id
    spans = [one async for page in pages(partial(query_spans, store), *ids) for one in page]
    return make_trace(record, spans)
