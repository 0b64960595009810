"""Gives each group that has ended to the run's grader, and stores what it says as its rollouts' rewards.

A rollout is judged if it succeeded and the policy had a part in it. One that failed, that a quorum set aside,
or that never came is not judged and gets nothing: it is left out as it is without a grader. Of a rollout that
is judged, what the grader says is the reward, and *missing* where it says nothing, whatever the agent gave
itself.

Invariants: a group is graded once for each set of attempts; an error of the grader leaves its group without
rewards, with the reason, and ends nothing; nothing is given as 0 that was not said to be 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.capture.records import error_text
from agentlightning.credit.rollout_reward import failure_of
from agentlightning.specs import CallGuard
from agentlightning.store.base import Store
from agentlightning.types import Record, UsageError
from agl_judge.client import BadVerdict, JudgeClient
from agl_judge.group import Finished, Group, GroupGrader, checked, finished
from agl_judge.store import Grade, add_group_rewards, is_graded

log = logging.getLogger(__name__)
JUDGED_FAILURES = (None, "no-reward")
"""What :func:`.failure_of` says of rollouts that are judged."""


class Counts(CallGuard):
    """What was graded, by step and in all, for metrics and summary: a guard that guards nothing."""

    name = "group_reward"

    def __init__(self, by: str = "") -> None:
        self.by = by
        self.total: Counter[str] = Counter()
        self._step: Counter[str] = Counter()

    def add(self, what: str, n: float = 1) -> None:
        """Count something of the present step."""
        self._step[what] += n  # type: ignore[assignment]
        self.total[what] += n  # type: ignore[assignment]

    def metrics(self) -> dict[str, float]:
        found, self._step = self._step, Counter()
        return {f"group_reward/{what}": float(n) for what, n in sorted(found.items())}

    def summary(self) -> dict[str, Any]:
        return {"by": self.by, **dict(sorted(self.total.items()))}


@dataclass(slots=True)
class Grading:
    """The rewards of a run's groups (:class:`agentlightning.specs.GroupReward`)."""

    grader: GroupGrader
    counts: Counts = field(init=False)
    _context: Context | None = None
    _client: JudgeClient | None = None

    def __post_init__(self) -> None:
        self.counts = Counts(self.grader.name)

    def open(self, context: Any) -> AbstractAsyncContextManager[None]:
        return self._open(context)

    @asynccontextmanager
    async def _open(self, context: Context) -> AsyncIterator[None]:
        for judge in self.grader.judges:
            check_judge(judge, context)
        self._context = context
        check = partial(check_judge, context=context)
        asked = context.store, context.gateway, context.run_id
        self._client = JudgeClient(*asked, check=check, count=self.counts.add)
        # asked for the metrics of a step, and for the summary
        context.guards = [*context.guards, self.counts]
        async with self._client:
            yield

    async def grade(self, records: Sequence[Record]) -> Sequence[Record]:
        context = self._context
        assert context is not None  # opened before the first rollout
        groups: dict[str, list[Record]] = {}
        for record in records:
            if not (self.grader.relative and is_evaluated(record)):
                groups.setdefault(record.rollout.group_id or record.rollout.rollout_id, []).append(record)
        work = (self._grade(context.store, group_id, group) for group_id, group in groups.items())
        changed = [one for ids in await asyncio.gather(*work) for one in ids]
        if not changed:
            return records
        now = {one.rollout.rollout_id: one for one in await context.store.records(changed)}
        return [now.get(one.rollout.rollout_id, one) for one in records]

    async def _grade(self, store: Store, group_id: str, records: Sequence[Record]) -> list[str]:
        """Grade a group; return the rollouts that have got a grade now."""
        records = sorted(records, key=lambda one: one.rollout.sample)
        failed = {one.rollout.rollout_id: failure_of(one) for one in records}
        judged = [one for one in records if failed[one.rollout.rollout_id] in JUDGED_FAILURES]
        ids = [(one.rollout.rollout_id, one.attempt.attempt_id) for one in judged if one.attempt]
        if all(is_graded(one.rollout, one.attempt.attempt_id) for one in judged if one.attempt):
            return []  # nothing is to be judged, or all of it was
        missing = {one: str(why) for one, why in failed.items() if why not in JUDGED_FAILURES}
        group = Group(judged[0].rollout.input, group_id, tuple(map(finished, judged)), missing, self._client)
        grades = await grade_group(self.grader, group, dict(ids))
        await add_group_rewards(store, grades)
        self._count(group, grades)
        return [one.rollout_id for one in grades]

    def _count(self, group: Group, grades: Sequence[Grade]) -> None:
        self.counts.add("groups")
        self.counts.add("not_judged", len(group.missing))
        self.counts.add("replaced", sum(one.reward is not None for one in group.rollouts))
        for grade in grades:
            self.counts.add(
                "graded" if grade.value is not None else f"missing/{grade.reason.partition(':')[0]}"
            )


async def grade_group(grader: GroupGrader, group: Group, attempts: Mapping[str, str]) -> list[Grade]:
    """Return the grades of a group's rollouts. ``attempts``: rollout id → the attempt that is judged."""
    why = ""
    values: list[float | None] = [None] * len(group.rollouts)
    try:
        values = checked(group, await grader(group))
    except BadVerdict as error:
        why = f"bad-verdict: {grader.name}: {error}"
    except (Exception, SystemExit) as error:
        why = f"grader-raised: {grader.name}: {type(error).__name__}: {error_text(error)}"
        log.exception("the group reward %s failed for the group %s", grader.name, group.group_id)

    def grade(one: Finished, value: float | None) -> Grade:
        reason = "" if value is not None else why or group.reasons.get(one.rollout_id) or "none-given"
        parts = {} if value is None else group.parts.get(one.rollout_id, {})
        return Grade(
            rollout_id=one.rollout_id,
            attempt_id=attempts[one.rollout_id],
            value=value,
            by=grader.name,
            reason=reason[:500],
            parts=parts,
            calls=list(dict.fromkeys(group.asked)),
        )

    return [grade(one, value) for one, value in zip(group.rollouts, values, strict=True)]


def check_judge(judge: str, context: Context) -> None:
    """Raise :class:`UsageError` for a judge that the run does not serve, or that it trains."""
    route = context.gateway.routes.get(judge)
    if route is None:
        known = ", ".join(name for name, one in context.gateway.routes.items() if not one.trainable)
        raise UsageError(
            f"group_reward: the run serves no policy {judge!r} to ask as a judge (frozen ones: "
            f"{known or 'none'}); name it under backend.policy, as an endpoint or with train: false"
        )
    if route.trainable:
        raise UsageError(f"group_reward: the policy {judge!r} is trained; a judge is a frozen policy")


def is_evaluated(record: Record) -> bool:
    """Return whether a rollout belongs to an evaluation."""
    return record.rollout.mode != "train" or "evaluation" in record.rollout.metadata
