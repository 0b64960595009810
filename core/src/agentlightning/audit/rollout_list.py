"""The rollouts of a run, one line each, with the ids that ``agl trace`` and ``agl explain`` take.

Invariant: nothing is left out silently: a full page says where the next begins.
"""

from __future__ import annotations

import operator
import re
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from agentlightning.audit.run import OpenRun
from agentlightning.credit.scoring.rewards import resolve
from agentlightning.types import Attempt, Mode, Record, Rollout, RolloutStatus, UsageError
from agentlightning.types.base import Model
from agentlightning.types.failure import TRACEBACK

_PAGE = 100
"""Rollouts whose records, with every token, are read at once."""
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
    """Of the answer."""
    reward: float | None = None
    """Its own, if it has one."""
    status: str = "ok"


class RolloutSummary(Model):
    """One rollout, as ``agl rollouts`` shows it."""

    rollout: str
    task: str = ""
    batch: str = ""
    """``train/3``: the fourth step's; ``eval/before/1``: an evaluation's."""
    mode: str = "train"
    status: str = ""
    reward: float | None = None
    """The rollout's; ``None``: it has none."""
    attempts: int = 0
    attempt: str | None = None
    """The latest; those before: ``agl trace --all``."""
    calls: list[CallSummary] = []
    """Those of the latest attempt."""
    reason: str | None = None
    raised_at: str | None = None
    """The agent's line that raised; the traceback: ``agl trace``."""


class RolloutPage(NamedTuple):
    """A page of rollouts; ``after``: argument for the next page, ``None`` on the last."""

    lines: list[RolloutSummary]
    after: str | None


def reward_filter(text: str | None) -> Callable[[float | None], bool]:
    """``<0.5``, ``>=1``, ``0``, ``none`` (there is none) as a test. Raises :class:`BadFilter`."""
    if text is None:
        return lambda reward: True
    if text.strip().lower() == "none":
        return lambda reward: reward is None
    match = _ASKED.fullmatch(text)
    try:
        compare, bound = _COMPARE[(match and match[1]) or "="], float(match[2] if match else "")
    except ValueError:
        raise BadFilter(f"reward {text!r}: write e.g. 1, '<0.5', '>=1', '!=0' or none") from None
    return lambda reward: reward is not None and compare(reward, bound)


async def list_rollouts(
    run: OpenRun,
    *,
    failed: bool = False,
    reward: str | None = None,
    mode: Mode | None = None,
    task: str | None = None,
    step: int | None = None,
    limit: int = 50,
    after: str | None = None,
) -> RolloutPage:
    """Up to ``limit`` rollouts of ``run`` that pass all filters, in the order they were queued."""
    wanted, lines = reward_filter(reward), list[RolloutSummary]()
    async for rollout, record in _read(run, failed, mode, task, after):
        line = _line(run.run_id, rollout, record)
        if not wanted(line.reward) or (step is not None and line.batch != f"train/{step}"):
            continue
        if len(lines) == limit:
            return RolloutPage(lines, lines[-1].rollout)
        lines.append(line)
    return RolloutPage(lines, None)


async def _read(
    run: OpenRun, failed: bool, mode: Mode | None, task: str | None, after: str | None
) -> AsyncIterator[tuple[Rollout, Record]]:
    """The rollouts and their records, page by page of the store."""
    status = [RolloutStatus.FAILED, RolloutStatus.CANCELLED] if failed else None
    while page := await run.store.query_rollouts(
        run_id=run.run_id, status=status, mode=mode, task_id=task, limit=_PAGE, after=after
    ):
        for pair in zip(page, await run.store.records([r.rollout_id for r in page]), strict=True):
            yield pair
        after = page[-1].rollout_id


def _line(run_id: str, rollout: Rollout, record: Record) -> RolloutSummary:
    rewards = resolve(record)
    attempt = record.attempt
    return RolloutSummary(
        rollout=rollout.rollout_id,
        task=rollout.task_id or "",
        batch=_batch(run_id, rollout.group_id),
        mode=rollout.mode,
        status=str(rollout.status),
        reward=rewards.final,
        attempts=rollout.attempts,
        attempt=attempt.attempt_id if attempt else None,
        calls=[
            CallSummary(
                call=call.call_id,
                agent=call.tags.get("agent", ""),
                tokens=len(call.response_ids or ()),
                reward=rewards.calls.get(call.call_id),
                status=call.status,
            )
            for call in record.calls
        ],
        reason=rollout.reason or (attempt.reason if attempt else None),
        raised_at=_raised_at(attempt),
    )


def _raised_at(attempt: Attempt | None) -> str | None:
    told = attempt.metadata.get(TRACEBACK) if attempt else None
    return told.splitlines()[0] if isinstance(told, str) and told else None


def _batch(run_id: str, group: str | None) -> str:
    """Of ``<run>/train/3/7``, the eighth task of a step: ``train/3``."""
    if group is None:
        return ""
    return group.removeprefix(f"{run_id}/").rpartition("/")[0]
