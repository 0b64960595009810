"""Watches what the policy of a run does: its behaviour among the metrics of each step, and its alarms.

It sees a step's records when they are read for credit, after all rewards of groups, so that nothing is read
twice. Its alarms stand in the run's record and summary, as ``alarms``: kind → :class:`.Alarm`.

Invariants: it changes no row; an error of its own costs figures, never the run; each kind is raised once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from agentlightning.algorithms.context import Context
from agentlightning.specs import CallGuard
from agentlightning.store.pages import RECORD_PAGE
from agentlightning.train.run_record import stored_run
from agentlightning.types import Batch, Record
from agentlightning.types.failure import FailureTable
from agl_audit.behaviour.alarms import NAME, Alarm, alarms, alarms_of, evidence
from agl_audit.behaviour.rollout import Seen, seen, step_metrics
from agl_audit.store.fingerprints import query_fingerprints
from agl_audit.store.tools import tool_runs, tools_of

log = logging.getLogger(__name__)
LOGGED = 3
"""Errors of a watch that are logged; further ones are counted."""
ADVICE = 'docs/troubleshooting.md, "Reward rises and the agent gets worse", says what to look at'


class Raised(CallGuard):
    """The alarms of a run, for its record and summary: a guard that guards nothing."""

    name = NAME

    def __init__(self) -> None:
        self.alarms: dict[str, Alarm] = {}

    def summary(self) -> dict[str, Any]:
        found = self.alarms.items()  # with the text, for who shows it without this package
        return {kind: {**alarm.model_dump(), "text": alarm.text()} for kind, alarm in found}


class BehaviourWatch:
    """The watch of one run: it sees records as a :class:`agentlightning.specs.GroupReward` that gives none,
    and adds to a step's metrics as a :class:`agentlightning.specs.BatchEdit` that leaves its rows.

    ``failure``: the run's failure table.
    """

    def __init__(self, failure: FailureTable) -> None:
        self._failure = failure
        self._raised = Raised()
        self._seen: dict[str, Seen] = {}
        """The rollouts of the present step that were read."""
        self._steps: dict[int, Mapping[str, float]] = {}
        """Step → metrics."""
        self._context: Context | None = None
        self._begun = False

    @asynccontextmanager
    async def open(self, context: Context) -> AsyncIterator[None]:
        """Look at records after everything that gives rewards to groups."""
        self._context = context
        context.group_rewards = [*context.group_rewards, self]
        context.guards = [*context.guards, self._raised]  # asked for the record and the summary
        yield

    async def grade(self, records: Sequence[Record]) -> Sequence[Record]:
        """Look at the rollouts that are trained, and return the records as they are."""
        trained = [one for one in records if one.rollout.mode == "train" and not _is_evaluated(one)]
        try:
            self._seen |= {one.rollout: one for one in await self._look(trained)}
        except Exception:
            self._failed("a step's rollouts")
        return records

    async def edit(self, step: int, batch: Batch) -> Batch:
        """Return the batch with the step's behaviour among its metrics, and raise alarms."""
        rollouts = [self._seen[one.rollout_id] for one in batch.ledgers if one.rollout_id in self._seen]
        self._seen.clear()
        if not rollouts:
            return batch
        try:
            found = msgspec.structs.replace(batch, metrics={**batch.metrics, **step_metrics(rollouts)})
            await self._judge(step, found.metrics, rollouts)
        except Exception:
            self._failed(f"step {step + 1}")
            return batch
        return found

    async def _look(self, records: Sequence[Record]) -> list[Seen]:
        context = self._context
        assert context is not None
        try:
            runs = await tool_runs(context.store, [one.rollout.rollout_id for one in records])
        except Exception:  # a server without this plugin
            runs = {}
            self._failed("tools")
        policies = {*context.drivers}

        def look() -> list[Seen]:
            return [seen(one, policies, tools_of(one, runs), self._failure) for one in records]

        return await asyncio.to_thread(look)

    async def _judge(self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Seen]) -> None:
        context = self._context
        assert context is not None
        if not self._begun:
            await self._begin(context, step)
        self._steps[step] = metrics
        for alarm in alarms(self._steps):
            if alarm.kind in self._raised.alarms:
                continue
            alarm.rollouts = evidence(alarm.kind, await self._rollouts_of(alarm.first[0] - 1), rollouts)
            self._raised.alarms[alarm.kind] = alarm
            await context.store.update_run(context.run_id, context.guarded())
            context.say(f"ALARM after step {step + 1}: {alarm.text()}. {ADVICE}")

    async def _begin(self, context: Context, step: int) -> None:
        """Take over what the run had shown before ``step``, if it is resumed."""
        self._begun = True
        for report in await context.store.query_steps(context.run_id):
            if report.step < step:
                self._steps.setdefault(report.step, report.metrics)
        known = alarms_of(await stored_run(context.store, context.run_id) or {})
        self._raised.alarms = {one.kind: one for one in known if one.last[1] <= step}
        if len(known) > len(self._raised.alarms):  # those of steps that are made again
            await context.store.update_run(context.run_id, {NAME: self._raised.summary()})

    async def _rollouts_of(self, step: int) -> list[Seen]:
        """Return rollouts of a finished step."""
        context = self._context
        assert context is not None
        found = await query_fingerprints(context.store, context.run_id, step)
        ids = [*dict.fromkeys(one.rollout_id for one in found)][:RECORD_PAGE]
        return await self._look(await context.store.records(ids))

    def _failed(self, what: str) -> None:
        """Count an error of the watch, and log the first ones."""
        assert self._context is not None
        errors = self._context.plugins.errors
        errors["behaviour"] += 1
        if errors["behaviour"] <= LOGGED:
            log.exception("the behaviour of %s is unknown; the run goes on", what)


def _is_evaluated(record: Record) -> bool:
    return "evaluation" in record.rollout.metadata
