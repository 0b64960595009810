"""Look at runs again and again while they train: steps, rewards, rollouts, calls, workers, errors, and rates.

Everything is read; nothing is written. A rate is the difference of two looks, divided by the seconds between
them, and is missing at the first. A store that cannot be read is listed with its reason, and is tried again.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentlightning.plugins.manager import Plugins
from agentlightning.store import Store
from agentlightning.types import RolloutStatus, StepReport, UsageError, Worker
from agentlightning.types.base import Model
from agl_audit.behaviour.rollout import shown_figures
from agl_audit.drawing import short
from agl_audit.locations import RunLocation, opened, places_of
from agl_audit.run_list import RunSummary, list_runs, to_show
from agl_audit.store.statistics import statistics
from agl_audit.store.workers import query_workers
from agl_trackers.curve import RewardHistory

_FAILURES = 5
"""The newest failed rollouts that a look shows."""
_WORKERS = 200
_SHORT = 200
"""Characters of a reason."""


class WorkerLine(Model):
    """A worker of the store."""

    worker: str
    status: str
    silent_seconds: float | None = None
    """Since its last heartbeat."""
    rollout: str | None = None
    """The rollout that it named at its last heartbeat."""


class FailedRollout(Model):
    """A rollout that failed or was cancelled."""

    rollout: str
    reason: str


class RunDetail(Model):
    """What is known of one run at one look."""

    rewards: list[float | None] = []
    """The mean training reward of each step."""
    rollouts: dict[str, int] = {}
    """Status → rollouts."""
    calls: int = 0
    tokens: dict[str, int] = {}
    """Of all calls: ``prompt``, ``completion``."""
    calls_per_second: float | None = None
    tokens_per_second: float | None = None
    """Answered tokens."""
    call_seconds: dict[str, float] = {}
    """Quantiles: ``p50, p90, p99, max``."""
    step_seconds: dict[str, float] = {}
    """Phase → seconds of the last step."""
    behaviour: dict[str, float] = {}
    """What the policy did in the rollouts of the last step, by the names of its metrics."""
    failed: dict[str, int] = {}
    """Kind of failure → rollouts of finished steps."""
    left_out: dict[str, int] = {}
    """Reason → calls of finished steps that were not trained."""
    failures: list[FailedRollout] = []
    """The newest failed rollouts."""


class Look(Model):
    """What one look saw."""

    time: float
    """Seconds since the epoch."""
    runs: list[RunSummary]
    """Newest first."""
    selected: str | None = None
    """The run that ``detail`` is of."""
    detail: RunDetail | None = None
    workers: list[WorkerLine] = []
    """Of the selected run's store."""
    counts: dict[str, dict[str, int]] = {}
    """What that store counted: kind → reason → n, refused writes among them."""
    problem: str | None = None
    """Why the selected run could not be read."""


class _Sample(NamedTuple):
    at: float
    calls: int
    tokens: int


class Watcher:
    """Looks at the runs of a place. ``clock``: seconds since the epoch; ``ticks``: seconds that only rise."""

    def __init__(
        self,
        where: str | None = None,
        plugins: Plugins | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where, self._plugins = where, plugins
        self._clock, self._ticks = clock, ticks
        self._known: dict[str, tuple[object, list[RunSummary]]] = {}
        """Store → its file's state and its runs, none of which was running."""
        self._samples: dict[tuple[str, str], _Sample] = {}

    async def look(self, selected: str | None = None) -> Look:
        """Look at all runs, and closer at one. ``selected``: its id; default: the newest that is running,
        else the newest. Raise :class:`.NoSuchRun` if the place is none.
        """
        places, named = places_of(self._where)
        lines = [line for place in places for line in await self._lines(place)]
        lines = [line for line in lines if named is None or line.run.startswith(named)]
        lines.sort(key=lambda line: line.when or 0.0, reverse=True)
        found = Look(time=self._clock(), runs=lines)
        line = _chosen(lines, selected)
        if line is not None:
            found.selected = line.run
            try:
                async with opened(line.store, self._plugins) as store:
                    found.detail = await self._detail(line, store)
                    found.workers = self._workers(await query_workers(store, limit=_WORKERS))
                    found.counts = await store.counts()
            except (UsageError, OSError, ValueError) as error:
                found.problem = short(error, _SHORT)
        found.runs = [to_show(line) for line in lines]
        return found

    async def _lines(self, place: RunLocation) -> list[RunSummary]:
        """The runs of a store; a file that has not changed and in which nothing runs is not read again."""
        mark = _mark(place.store)
        kept = self._known.get(place.store)
        if kept is not None and mark is not None and kept[0] == mark:
            return kept[1]
        lines = await list_runs([place], self._plugins)
        self._known.pop(place.store, None)
        if mark is not None and not any(line.status in ("running", "unreadable") for line in lines):
            self._known[place.store] = (mark, lines)
        return lines

    async def _detail(self, line: RunSummary, store: Store) -> RunDetail:
        reports = await store.query_steps(line.run)
        found: Mapping[str, Any] = await statistics(store, line.run)
        tokens = found.get("tokens") or {}
        calls_rate, tokens_rate = self._rates(line, found["calls"], tokens.get("completion", 0))
        ended = [RolloutStatus.FAILED, RolloutStatus.CANCELLED]
        failures = await store.query_rollouts(
            run_id=line.run, status=ended, sort_order="desc", limit=_FAILURES
        )
        return RunDetail(
            rewards=_rewards(reports),
            rollouts=found.get("rollouts") or {},
            calls=found["calls"],
            tokens=tokens,
            calls_per_second=calls_rate,
            tokens_per_second=tokens_rate,
            call_seconds=found.get("call_seconds") or {},
            step_seconds=reports[-1].seconds if reports else {},
            behaviour=shown_figures(reports[-1].metrics) if reports else {},
            failed=_sums(reports, "failed/"),
            left_out=_sums(reports, "left_out/"),
            failures=[
                FailedRollout(rollout=one.rollout_id, reason=short(one.reason or "", _SHORT))
                for one in failures
            ],
        )

    def _rates(self, line: RunSummary, calls: int, tokens: int) -> tuple[float | None, float | None]:
        now = _Sample(self._ticks(), calls, tokens)
        before = self._samples.get((line.store, line.run))
        self._samples[line.store, line.run] = now
        if before is None or now.at <= before.at:
            return None, None
        seconds = now.at - before.at
        return max(0, calls - before.calls) / seconds, max(0, tokens - before.tokens) / seconds

    def _workers(self, workers: Sequence[Worker]) -> list[WorkerLine]:
        now = self._clock()
        return [
            WorkerLine(
                worker=short(one.worker_id, _SHORT),
                status=one.status,
                silent_seconds=None
                if one.last_heartbeat_time is None
                else max(0.0, now - one.last_heartbeat_time),
                rollout=one.current_rollout_id,
            )
            for one in workers
        ]


def _chosen(lines: Sequence[RunSummary], selected: str | None) -> RunSummary | None:
    """The run that is looked at closer; an unreadable one only where it was chosen."""
    if selected is not None:
        return next((line for line in lines if line.run == selected), None)
    readable = [line for line in lines if line.status != "unreadable"]
    running = (line for line in readable if line.status == "running")
    return next(running, readable[0] if readable else None)


def _mark(store: str) -> object:
    """What changes with every commit to a store's file; ``None`` where it is no file."""
    if "://" in store:
        return None
    marks: list[tuple[int, int, int] | None] = []
    for path in (Path(store), Path(f"{store}-wal")):
        try:
            state = path.stat()
        except OSError:
            marks.append(None)
        else:  # readers make an empty write-ahead log: it says nothing
            known = (state.st_ino, state.st_size, state.st_mtime_ns)
            marks.append(known if state.st_size else None)
    return tuple(marks)


def _rewards(reports: Sequence[StepReport]) -> list[float | None]:
    history = RewardHistory()
    history.begin({"trained": {report.policy for report in reports} if _several(reports) else ()})
    for report in reports:
        history.add(report)
    return [None if math.isnan(value) else value for value in history.rewards]


def _several(reports: Sequence[StepReport]) -> bool:
    return len({report.policy for report in reports}) > 1


def _sums(reports: Sequence[StepReport], family: str) -> dict[str, int]:
    """The counts of a family of metrics over all steps. Policies of one step share its rollouts."""
    sums: Counter[str] = Counter()
    seen: set[int] = set()
    for report in reports:
        if family == "failed/" and report.step in seen:
            continue
        seen.add(report.step)
        for name, value in report.metrics.items():
            if name.startswith(family) and value:
                sums[name.removeprefix(family)] += int(value)
    return dict(sums.most_common())
