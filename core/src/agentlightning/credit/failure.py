"""What a failed rollout means for training. Failed is not zero.

By default every kind is *left out*: no row, no part in any baseline, counted. A table can give a kind a
reward instead, e.g. ``{"timeout": -1.0}``; then the rollout is credited as if it had ended with that final
reward, and nothing else it emitted counts. (Trying again is the runner's part and has happened before credit
sees a record.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from agentlightning.credit.rewards import resolve
from agentlightning.types import AttemptStatus, Record, Reward, RolloutStatus

KINDS: dict[str, str] = {
    "agent-raised": "the agent's code raised an exception",
    "no-call": "the agent made no model call",
    "no-reward": "it succeeded, but no finite reward of any kind was emitted",
    "timeout": "the attempt took longer than allowed",
    "unresponsive": "the worker fell silent",
    "cancelled": "somebody cancelled it",
    "model-4xx": "the engine refused a call",
    "model-5xx": "the engine failed",
    "over-length": "a prompt was longer than the policy takes",
    "failed": "it failed for any other reason",
}
"""Kinds of failure. A rollout's ``reason`` that starts with ``<kind>`` or ``<kind>:`` names its kind."""

Failure = Mapping[str, float | None]
"""Kind → reward; ``None`` or absent: leave out."""


def check_failure(table: Failure) -> None:
    """``ValueError`` for an unknown kind or a reward that is no finite number."""
    for kind, value in table.items():
        if kind not in KINDS:
            raise ValueError(f"failure: unknown kind {kind!r}; use one of {', '.join(KINDS)}")
        if value is not None and not math.isfinite(value):
            raise ValueError(f"failure[{kind!r}] = {value}: must be a finite reward, or None (leave out)")


def failure_of(record: Record) -> str | None:
    """The kind of failure of a record; ``None`` if it succeeded with a reward to learn from."""
    rollout, attempt = record.rollout, record.attempt
    if rollout.status == RolloutStatus.SUCCEEDED:
        rewards = resolve(record)
        values = [rewards.final, *rewards.calls.values(), *rewards.agents.values()]
        return "no-reward" if all(value is None for value in values) else None
    named = (rollout.reason or "").split(":", 1)[0].strip()
    if named in KINDS:
        return named
    if rollout.status == RolloutStatus.CANCELLED:
        return "cancelled"
    if attempt is not None and attempt.status == AttemptStatus.TIMEOUT:
        return "timeout"
    if attempt is not None and attempt.status == AttemptStatus.UNRESPONSIVE:
        return "unresponsive"
    return "failed" if record.calls else "no-call"


def with_reward(record: Record, value: float) -> Record:
    """The record as if its rollout had ended with this final reward and nothing else."""
    return msgspec.structs.replace(record, rewards=[Reward(value=value)])
