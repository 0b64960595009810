"""Compare two runs: evaluations with their intervals, paired where both evaluated the same tasks, the curves
of their rewards, and the settings in which they differ.

A task is the same if its id is, which is a digest of its content unless the dataset names it. A rollout
counts with the reward that the evaluation itself counts (:mod:`agentlightning.credit.rollout_reward`); a task
of which one of the runs has no reward cannot be paired.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from agentlightning.algorithms.evaluation.evaluate import summarise, unit_of
from agentlightning.algorithms.evaluation.intervals import mean_interval
from agentlightning.algorithms.journal import GROWING_ENTRIES
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.store.pages import pages
from agentlightning.types import Evaluation, Mode, Record
from agentlightning.types.base import Model
from agentlightning.types.failure import FailureTable
from agl_audit.run import OpenRun
from agl_audit.store.reward_versions import RewardVersion, find_version, read_records

_PAGE = 100
_NO_TOKENS: dict[str, Any] = {"prompt_ids": None, "response_ids": None, "logprobs": None, "request": None}
_LEFT_OUT = GROWING_ENTRIES | {"run_id", "resources"}
"""Entries of a run's record that are no settings."""
_NOT_SET = frozenset({"about.gateway", "about.gateways", "about.recipe", "about.policy"})
"""Settings that another entry says already, or that each run has anew."""


class PairedEvaluation(Model):
    """One evaluation of both runs."""

    name: str
    first: Evaluation | None = None
    second: Evaluation | None = None
    tasks: int = 0
    """Number of tasks that both evaluated; 0: they cannot be paired."""
    difference: float | None = None
    """Mean of second − first over those tasks."""
    ci: tuple[float, float] | None = None
    """95 % interval of the difference; ``None`` if it cannot be estimated."""
    interval: str = ""
    """How the interval was computed, or why not."""
    better: int = 0
    worse: int = 0
    """Tasks in which the second run's reward is higher, and lower."""
    unpaired: int = 0
    """Tasks of which only one of them has a reward."""


class Comparison(Model):
    """Two runs side by side."""

    first: str
    second: str
    evaluations: list[PairedEvaluation] = []
    curves: dict[str, list[float | None]] = {}
    """``first`` and ``second`` → the training reward of each step; ``None``: no reward."""
    seconds: dict[str, float | None] = {}
    rewards: str | None = None
    """The version of the rewards that is compared; ``None``: the original ones."""
    settings: dict[str, tuple[Any, Any]] = {}
    """Key → the values of both runs where they differ; ``None``: not set."""


async def compare(first: OpenRun, second: OpenRun, rewards: str | None = None) -> Comparison:
    """Compare two open runs. ``rewards``: the version of the rewards of both, by which their evaluations and
    curves are made again; rollouts that have none in it are left out.
    """
    both = [_Side(run, await find_version(run.store, run.run_id, rewards)) for run in (first, second)]
    found = [_evaluations(side.run) for side in both]
    names = list(dict.fromkeys([*found[0], *found[1]]))
    cluster = next((run.counting.cluster for run in (first, second) if run.counting.cluster), None)
    paired = []
    for name in names:
        pair = [given.get(name) for given in found]
        evaluations: list[Evaluation | None] = []
        by_task: list[dict[str, _TaskReward]] = []
        for side, batch in zip(both, pair, strict=True):
            records = [] if batch is None else await side.records(batch[0], "val")
            by_task.append(_by_task(records, side.run.counting.failure, cluster))
            evaluations.append(batch and (batch[1] if side.version is None else _again(side, name, records)))
        paired.append(_pair(name, evaluations, by_task, cluster))
    curves = [await (_curve(side.run) if side.version is None else side.curve()) for side in both]
    sides = ("first", "second")
    return Comparison(
        first=first.run_id,
        second=second.run_id,
        evaluations=paired,
        curves=dict(zip(sides, curves, strict=True)),
        seconds={
            side: (run.info.get("summary") or {}).get("total_seconds")
            for side, run in zip(sides, (first, second), strict=True)
        },
        rewards=rewards,
        settings=differences(first.info, second.info),
    )


def _evaluations(run: OpenRun) -> dict[str, tuple[str, Evaluation]]:
    """Return name → (batch, evaluation): the last of each name. That of ``agl eval`` counts as ``after``."""
    found = {}
    for batch, entry in (run.info.get("evaluations") or {}).items():
        evaluation = Evaluation(**entry["evaluation"])
        found["after" if evaluation.name == "eval" else evaluation.name] = (batch, evaluation)
    return found


@dataclass(frozen=True, slots=True)
class _Side:
    """A run, and the version of its rewards."""

    run: OpenRun
    version: RewardVersion | None

    async def records(self, batch: str, mode: Mode) -> list[Record]:
        """Return the records of a batch: ``eval/before/1``, ``train``. With a version, those it rewards."""
        found: list[Record] = []
        table = self.run.counting.failure
        start = f"{self.run.run_id}/{batch}/"
        async for page in pages(self.run.store.query_rollouts, run_id=self.run.run_id, mode=mode, size=_PAGE):
            mine = [one.rollout_id for one in page if (one.group_id or "").startswith(start)]
            records = await read_records(self.run.store, mine, self.version) if mine else []
            if self.version is not None:
                records = [one for one in records if rollout_reward(one, table).value is not None]
            for record in records:  # tokens and messages are not read here
                record.calls = [msgspec.structs.replace(call, **_NO_TOKENS) for call in record.calls]
            found += records
        return found

    async def curve(self) -> list[float | None]:
        """Return the mean reward of each step in the version; ``None``: no rollout of it has one."""
        found: dict[int, list[float]] = {}
        for record in await self.records("train", "train"):
            group = (record.rollout.group_id or "").removeprefix(f"{self.run.run_id}/train/")
            step = group.partition("/")[0].partition("+")[0]
            value = rollout_reward(record, self.run.counting.failure).value
            if step.isdigit() and value is not None:
                found.setdefault(int(step), []).append(value)
        last = max(found, default=-1)
        return [statistics.fmean(found[step]) if step in found else None for step in range(last + 1)]


class _TaskReward(NamedTuple):
    """The mean reward of a task, and its cluster."""

    reward: float
    unit: str


def _by_task(
    records: Sequence[Record], table: FailureTable | None, cluster: str | None
) -> dict[str, _TaskReward]:
    """Return task id → mean reward of its rollouts that have one."""
    found: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    for record in records:
        task, value = record.rollout.task_id, rollout_reward(record, table).value
        if task and value is not None:
            found.setdefault(task, []).append(value)
            units[task] = task if cluster is None else unit_of(record.rollout, cluster)
    return {task: _TaskReward(statistics.fmean(values), units[task]) for task, values in found.items()}


def _again(side: _Side, name: str, records: Sequence[Record]) -> Evaluation | None:
    """Return the evaluation of records with a version's rewards; ``None`` without one."""
    if not records:
        return None
    return msgspec.structs.replace(summarise(name, records, 0.0, side.run.counting), metrics={})


def _pair(
    name: str,
    evaluations: Sequence[Evaluation | None],
    rewards: Sequence[Mapping[str, _TaskReward]],
    cluster: str | None,
) -> PairedEvaluation:
    common = sorted(rewards[0].keys() & rewards[1].keys())
    gains = [rewards[1][task].reward - rewards[0][task].reward for task in common]
    interval = mean_interval(gains, [rewards[1][task].unit for task in common], cluster, shares=False)
    both = all(one is not None for one in evaluations)
    return PairedEvaluation(
        name=name,
        first=evaluations[0],
        second=evaluations[1],
        tasks=len(common),
        difference=statistics.fmean(gains) if gains else None,
        ci=interval.ends,
        interval=interval.kind if gains else "",
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        unpaired=len(rewards[0].keys() ^ rewards[1].keys()) if both else 0,
    )


async def _curve(run: OpenRun) -> list[float | None]:
    """Return the training reward of each step. Policies of a run share its rollouts."""
    found: dict[int, float | None] = {}
    for report in await run.store.query_steps(run.run_id):
        value = report.metrics.get("reward_mean")
        found[report.step] = None if value is None or math.isnan(value) else value
    return [found[step] for step in sorted(found)]


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two runs' records differ, by their dotted keys."""
    one, other = dict(_flat(first)), dict(_flat(second))
    keys = list(dict.fromkeys([*one, *other]))
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def _flat(info: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in info.items():
        name = f"{above}{key}"
        if (not above and key in _LEFT_OUT) or name in _NOT_SET:
            continue
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value
