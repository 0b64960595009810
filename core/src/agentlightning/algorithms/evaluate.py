"""Evaluation: the mean reward of an agent on tasks, with a 95 % interval and counts of its calls.

A rollout counts with the one reward of its kind of record (:mod:`agentlightning.credit.rollout_reward`): a
failure with the reward of the run's failure table, and without one it is left out of the mean and counted.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from agentlightning.algorithms.intervals import mean_interval, pass_metrics
from agentlightning.algorithms.queue import Read, enqueue
from agentlightning.credit.rewards import resolve
from agentlightning.credit.rollout_reward import failure_reasons as failure_reasons_of, rollout_reward
from agentlightning.credit.rules import READS
from agentlightning.credit.verdicts import open_ledger, verdicts
from agentlightning.store.base import Store
from agentlightning.types import Evaluation, Record, Rollout, RolloutStatus, UsageError
from agentlightning.types.base import LEARNED_NOTHING, ConfigError
from agentlightning.types.failure import TRACEBACK, FailureTable


class Counting(NamedTuple):
    """How the rollouts of a run's evaluations are counted."""

    failure: FailureTable | None = None
    """The run's failure table; ``None``: the defaults, by which failures are left out."""
    cluster: str | None = None
    """Field of the tasks that says which of them are not independent (``evaluation.cluster``)."""


@dataclass(slots=True)
class Evaluations:
    """The evaluations of one run. Each has new rollouts, which its batch names."""

    counting: Counting = field(default_factory=Counting)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Batch → a finished evaluation and the policy version that was evaluated."""
    _rounds: Counter[str] = field(default_factory=Counter)
    """Name → number of evaluations of that name."""

    def next_batch(self, name: str) -> str:
        """Return the batch of the next evaluation of this name."""
        self._rounds[name] += 1
        return f"eval/{name}/{self._rounds[name]}"

    def still_valid(self, batch: str, version: int, *, chosen: bool) -> Evaluation | None:
        """Return what the run found before it was resumed, if it holds for the served ``version``.
        ``chosen``: another policy than the trained one is asked, which does not change.
        """
        if (entry := self.made.get(batch)) is None:
            return None
        found = msgspec.convert(entry["evaluation"], Evaluation)
        valid = entry["version"] == version or chosen or found.name.startswith("before")
        return found if valid else None

    def finished(self) -> dict[str, Evaluation]:
        """Return the finished evaluations by name; the last of each name."""
        found = (msgspec.convert(entry["evaluation"], Evaluation) for entry in self.made.values())
        return {one.name: one for one in found}


class NothingRewarded(UsageError):
    """No rollout was rewarded: the agent or its environment is broken, and training would learn nothing."""

    status = LEARNED_NOTHING


async def evaluate(
    store: Store, name: str, rollouts: Sequence[Rollout], counting: Counting | None = None, read: Read = None
) -> tuple[Evaluation, Sequence[Record]]:
    """Run ``rollouts``, one or several of each task, and average their rewards; return the evaluation and its
    records. Raises :class:`NothingRewarded` if no rollout has a reward.
    """
    if not rollouts:
        raise UsageError(f"evaluation {name!r}: there are no tasks")
    began = time.perf_counter()
    ids = await enqueue(store, rollouts)
    await store.wait_for_rollouts(ids)
    records, seconds = await (read or store.records)(ids), time.perf_counter() - began
    evaluation = await asyncio.to_thread(summarise, name, records, seconds, counting)
    check_rewarded(evaluation, records)
    return evaluation, records


def check_rewarded(evaluation: Evaluation, records: Sequence[Record]) -> None:
    """Raise :class:`NothingRewarded` if no rollout has a reward."""
    if evaluation.left_out == evaluation.n:
        raise NothingRewarded(
            f"evaluation {evaluation.name!r}: none of {evaluation.n} rollouts got a reward: "
            f"{failure_reasons(records)}{first_traceback(records)}"
        )


def failure_reasons(records: Sequence[Record]) -> str:
    """Return why rollouts failed or have no reward, the commonest reason first, for an error message."""
    found = Counter(one.reason for record in records if (one := rollout_reward(record)).failure)
    return "; ".join(f"{n} × {reason[:300]}" for reason, n in found.most_common(3))


def first_traceback(records: Sequence[Record]) -> str:
    """Return the traceback of the first rollout whose agent raised, to append to a message."""
    for record in records:
        traceback = record.attempt.metadata.get(TRACEBACK) if record.attempt else None
        if traceback:
            return f"\nThe first traceback, of {record.rollout.rollout_id}: {traceback}"
    return ""


def unread_rewards(records: Sequence[Record], rule: str) -> str:
    """Return a message if the credit rule does not read the rewards that the agent emits; an empty one if
    the rule reads them or is a plugin's.
    """
    unread: Counter[str] = Counter()
    for record in records:
        given = _rewarded_targets(record)
        if given and rule in READS and not given & READS[rule]:
            unread.update(given)
    if not unread:
        return ""
    kind, n = unread.most_common(1)[0]
    others = " or ".join(repr(name) for name, reads in READS.items() if kind in reads)
    return (
        f"{n} of {len(records)} rollouts have rewards of the {kind} only, which the rule {rule!r} does not "
        f"read; recipe.credit = {others} does"
    )


def _rewarded_targets(record: Record) -> set[str]:
    """Return the targets of a successful rollout's finite rewards: ``rollout``, ``calls``, ``agents``."""
    if record.rollout.status != RolloutStatus.SUCCEEDED:
        return set()
    rewards = resolve(record)
    found = {"rollout": [rewards.final], "calls": rewards.calls.values(), "agents": rewards.agents.values()}
    return {kind for kind, values in found.items() if any(value is not None for value in values)}


def summarise(
    name: str, records: Sequence[Record], seconds: float, counting: Counting | None = None
) -> Evaluation:
    """Return the evaluation of these records, at least one. If tasks have several rollouts, ``pass@k`` is
    among its metrics. The mean is NaN if no rollout has a reward.
    """
    counting = counting or Counting()
    found = [rollout_reward(record, counting.failure) for record in records]
    kept = [(one.value, record) for one, record in zip(found, records, strict=True) if one.value is not None]
    values = [value for value, _ in kept]
    units = [unit_of(record.rollout, counting.cluster) for _, record in kept]
    interval = mean_interval(values, units, counting.cluster)
    by_task: dict[str, list[float]] = {}
    for value, record in kept:
        by_task.setdefault(task_of(record.rollout), []).append(value)
    several = len({task_of(record.rollout) for record in records}) < len(records)
    reasons = failure_reasons_of(found)
    return Evaluation(
        name=name,
        n=len(found),
        reward=math.fsum(values) / len(values) if values else math.nan,
        ci=interval.ends,
        interval=interval.kind,
        failed=sum(one.failure is not None for one in found),
        left_out=len(found) - len(values),
        reason=reasons[0] if reasons else "",
        rewards=[one.value for one in found],
        seconds=seconds,
        metrics=call_metrics(records) | (pass_metrics(by_task) if several else {}),
    )


def task_of(rollout: Rollout) -> str:
    """Return what rollouts of one task of an evaluation share."""
    return rollout.group_id or rollout.task_id or rollout.rollout_id


def unit_of(rollout: Rollout, cluster: str | None) -> str:
    """Return the unit of a rollout for intervals: its task, or the task's value of the field ``cluster``."""
    if cluster is None:
        return task_of(rollout)
    task = rollout.input
    return json.dumps(task.get(cluster) if isinstance(task, dict) else None, sort_keys=True)


def check_clusters(tasks: Sequence[Any], cluster: str | None, name: str) -> None:
    """Raise :class:`.ConfigError` for a task without the field ``evaluation.cluster``. ``name``: the
    dataset's.
    """
    for position, task in enumerate(tasks if cluster is not None else ()):
        if not isinstance(task, dict) or cluster not in task:
            has = f"its fields are {', '.join(task)}" if isinstance(task, dict) else "it has no fields"
            raise ConfigError(
                f"evaluation.cluster: {name}: task {position} has no field {cluster!r} ({has}); name a field "
                "that every held-out task has, or drop the setting"
            )


def call_metrics(records: Sequence[Record]) -> dict[str, float]:
    """Return the number of calls, in all and by verdict, and of response tokens."""
    kinds: Counter[str] = Counter()
    made = recorded = 0
    for record in records:
        ledger = open_ledger(record, verdicts(record))
        made += ledger.made
        recorded += ledger.recorded
        kinds.update(ledger.verdicts)
    tokens = sum(len(call.response_ids or ()) for record in records for call in record.calls)
    return {
        "calls_made": float(made),
        "calls_recorded": float(recorded),
        "calls_exact": 0.0,
        "response_tokens": float(tokens),
        **{f"calls_{kind}": float(n) for kind, n in kinds.items()},
    }
