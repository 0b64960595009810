"""List the rollouts of a run, one line each, with the ids that ``agl trace`` and ``agl explain`` take.

Invariant: no rollout is left out silently: a full page names the start of the next page.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from agentlightning.credit.rewards import BY_AGENT, resolve
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.types import Attempt, Mode, Record, UsageError
from agentlightning.types.base import Model
from agentlightning.types.failure import TRACEBACK
from agentlightning.types.record import by_agent_beside_judge
from agl_audit.behaviour.rollout import Behaviour, ToolRuns, behaviour_of
from agl_audit.run import OpenRun
from agl_audit.store.reward_versions import find_version, read_records
from agl_audit.store.tools import tool_runs, tools_of

_PAGE = 100
"""Rollouts whose records are read at once, with every token."""
_ASKED = re.compile(r"\s*(<=|>=|!=|==|=|<|>)?\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}


class BadFilter(UsageError, ValueError):
    """An invalid filter."""


class CallSummary(Model):
    """One call of a rollout's latest attempt."""

    call: str
    agent: str = ""
    tokens: int = 0
    """Number of tokens of the answer."""
    reward: float | None = None
    """The reward of this call, if it has one."""
    status: str = "ok"


class RolloutSummary(Model):
    """One rollout, as ``agl rollouts`` shows it."""

    rollout: str
    task: str = ""
    batch: str = ""
    """``train/3``: the fourth step; ``eval/before/1``: an evaluation."""
    mode: str = "train"
    status: str = ""
    reward: float | None = None
    """The reward of the rollout; ``None``: it has none."""
    failure: str | None = None
    """Kind of its failure, as the counts of steps and evaluations name it."""
    attempts: int = 0
    attempt: str | None = None
    """The latest attempt; ``agl trace --all`` shows the earlier ones."""
    calls: list[CallSummary] = []
    """The calls of the latest attempt."""
    behaviour: Behaviour | None = None
    """What the policy did in it."""
    reason: str | None = None
    raised_at: str | None = None
    """The line of the agent that raised; ``agl trace`` shows the traceback."""


class RolloutPage(NamedTuple):
    """A page of rollouts; ``after``: argument for the next page, ``None`` on the last."""

    lines: list[RolloutSummary]
    after: str | None


def reward_condition(text: str) -> tuple[str, float | None]:
    """Return operator and bound of ``<0.5``, ``>=1``, ``0`` (``=``); ``("=", None)`` of ``none``: no reward.
    Raise :class:`BadFilter`.
    """
    if text.strip().lower() == "none":
        return "=", None
    match = _ASKED.fullmatch(text)
    try:
        bound = float(match[2] if match else "")
    except ValueError:
        bound = math.nan
    if match is None or math.isnan(bound):
        raise BadFilter(f"reward {text!r}: write e.g. 1, '<0.5', '>=1', '!=0' or none")
    return match[1] or "=", bound


def reward_filter(text: str | None) -> Callable[[float | None], bool]:
    """Return a test for a condition as :func:`reward_condition` reads it; ``None``: everything passes."""
    if text is None:
        return lambda reward: True
    sign, bound = reward_condition(text)
    if bound is None:
        return lambda reward: reward is None
    compare = _COMPARE[sign]
    return lambda reward: reward is not None and compare(reward, bound)


async def list_rollouts(
    run: OpenRun,
    *,
    failed: bool = False,
    reward: str | None = None,
    mode: Mode | None = None,
    task: str | None = None,
    step: int | None = None,
    rewards: str | None = None,
    limit: int = 50,
    after: str | None = None,
) -> RolloutPage:
    """Return up to ``limit`` rollouts of ``run`` that pass all filters, in the order they were queued.
    ``failed``: those that the counts of steps and evaluations call failed, and those that were cancelled.
    ``rewards``: the version of their rewards.
    """
    version = await find_version(run.store, run.run_id, rewards)
    wanted, lines = reward_filter(reward), list[RolloutSummary]()
    filters: dict[str, Any] = {"run_id": run.run_id, "mode": mode, "task_id": task}
    while page := await run.store.query_rollouts(**filters, limit=_PAGE, after=after):
        ids = [one.rollout_id for one in page]
        runs = await tool_runs(run.store, ids)
        for record in await read_records(run.store, ids, version):
            line = _line(run, record, tools_of(record, runs))
            if not wanted(line.reward) or (failed and line.failure is None):
                continue
            if step is not None and line.batch.partition("+")[0] != f"train/{step}":
                continue
            if len(lines) == limit:
                return RolloutPage(lines, lines[-1].rollout)
            lines.append(line)
        after = page[-1].rollout_id
    return RolloutPage(lines, None)


def _line(run: OpenRun, record: Record, tools: ToolRuns | None) -> RolloutSummary:
    earned, of_calls = rollout_reward(record, run.failure_table), resolve(record).calls
    rollout, attempt = record.rollout, record.attempt
    return RolloutSummary(
        rollout=rollout.rollout_id,
        task=rollout.task_id or "",
        batch=_batch(run.run_id, rollout.group_id),
        mode=rollout.mode,
        status=str(rollout.status),
        reward=earned.value,
        failure=earned.failure,
        attempts=rollout.attempts,
        attempt=attempt.attempt_id if attempt else None,
        calls=[
            CallSummary(
                call=call.call_id,
                agent=call.tags.get("agent", ""),
                tokens=len(call.response_ids or ()),
                reward=of_calls.get(call.call_id),
                status=call.status,
            )
            for call in record.calls
        ],
        behaviour=behaviour_of(record, run.trained, tools),
        reason=rollout.reason or (attempt.reason if attempt else None) or earned.reason or _ignored(record),
        raised_at=_raised_at(attempt),
    )


def _ignored(record: Record) -> str | None:
    """Return how many rewards the agent gave itself that do not count."""
    n = len(by_agent_beside_judge(record))
    return f"{BY_AGENT}: {n} rewards that the agent gave itself do not count beside a judge's" if n else None


def _raised_at(attempt: Attempt | None) -> str | None:
    told = attempt.metadata.get(TRACEBACK) if attempt else None
    return told.splitlines()[0] if isinstance(told, str) and told else None


def _batch(run_id: str, group: str | None) -> str:
    """Return the batch of a group: ``train/3`` for ``<run>/train/3/7``, the eighth task of a step."""
    if group is None:
        return ""
    return group.removeprefix(f"{run_id}/").rpartition("/")[0]
