"""The failure table decides the fate of a failed rollout. Failed is not zero.

One table is used everywhere: the runner names the kind of a failure (the first word of its ``reason``), the
store retries the kinds that the table retries, credit leaves out the rest or gives it the table's reward,
and the command line reads the table from ``training.failure``.

Invariant: every failed rollout has exactly one kind, and by default none of them becomes a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from agentlightning.types.base import JsonDump
from agentlightning.types.work import RETRIED_KINDS

FAILURE_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "agent-raised": "the agent's code raised an exception",
        "no-call": "the agent returned without one answer of the model: nothing to train",
        "no-reward": "it succeeded, but no finite reward of any kind was emitted",
        "bad-reward": "the agent returned or emitted NaN, infinity, a number beyond ±2**53, or no number "
        "at all",
        "timeout": "the attempt took longer than allowed",
        "unresponsive": "the worker sent no heartbeat",
        "cancelled": "it was cancelled",
        "straggler": "its group had enough other rollouts",
        "model-4xx": "the engine refused a call",
        "model-5xx": "the engine failed, or could not be reached",
        "over-length": "a prompt was longer than the policy takes",
        "budget": "a call was refused: the budget of the rollout or of the run is spent",
        "bad-record": "what the attempt handed in could not be stored",
        "failed": "any other reason",
    }
)
"""Kinds of failure. A ``reason`` that starts with ``<kind>`` or ``<kind>:`` names its kind."""

NOT_RETRYABLE: Mapping[str, str] = MappingProxyType(
    {"no-reward": "credit finds it when the rollout has succeeded", "straggler": "its group has gone on"}
)
"""Kinds that cannot be tried again, and why."""
TRACEBACK = "traceback"
"""Key of an attempt's metadata: the traceback of its agent's exception, the agent's own line first."""
SET_ASIDE_REASON = "set_aside"
"""Key of a rollout's metadata: why it is left out of training although it succeeded, kind first."""


class FailureAction(JsonDump, msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The consequence of a kind of failure: first ``retry``, then ``reward``, else it is left out."""

    retry: bool = False
    """Make another attempt, up to the rollout's ``max_attempts``."""
    reward: float | None = None
    """Train the rollout as if it had ended with this final reward; ``None``: leave it out."""


_Given = float | Literal["retry", "leave-out"] | FailureAction | None
FailureTable = Mapping[str, FailureAction]
"""Kind → action. A kind that is absent is left out of training."""

DEFAULT_FAILURE_TABLE: FailureTable = MappingProxyType(
    {kind: FailureAction(retry=True) for kind in RETRIED_KINDS}
)
"""Failures outside the agent are retried; the last one is left out of training, like all others."""
OUTAGE_KINDS = frozenset({"unresponsive", "cancelled", "model-5xx"})
"""Kinds that do not depend on sampled tokens: the next attempt repeats the failed one, seed for seed.
After any other failure it samples anew, since the same answers would fail again.
"""


def failure_kind(reason: str | None) -> str | None:
    """Return the kind that a reason names, or ``None``."""
    named = (reason or "").split(":", 1)[0].strip()
    return named if named in FAILURE_KINDS else None


def failure_kind_of_end(status: str, reason: str | None) -> str:
    """Return the kind of a failed attempt or rollout: the one in its reason, else its status."""
    named = failure_kind(reason)
    if named is not None:
        return named
    return str(status) if status in ("timeout", "unresponsive", "cancelled") else "failed"


def read_failure_table(given: Mapping[str, Any] | None) -> dict[str, FailureAction]:
    """Override ``DEFAULT_FAILURE_TABLE`` by ``given``: kind → a number (that reward), ``"retry"``,
    ``"leave-out"`` or ``None``, or ``{retry: …, reward: …}``. ``ValueError`` names the kind and the choices.
    """
    table = dict(DEFAULT_FAILURE_TABLE)
    for kind, value in (given or {}).items():
        if kind not in FAILURE_KINDS:
            raise ValueError(f"failure: unknown kind {kind!r}; use one of {', '.join(FAILURE_KINDS)}")
        table[kind] = _action(kind, value)
    return table


def reward_by_table(kind: str, table: FailureTable | None) -> float | None:
    """Return the reward that a table gives a kind of failure; ``None``: it is left out."""
    action = (table or {}).get(kind)
    return None if action is None else action.reward


def failures_in_words(failed: int, left_out: int, n: int, reason: str) -> str:
    """Return how many of ``n`` rollouts failed, how they count in the mean beside it, and a reason; empty if
    none failed.
    """
    if not failed:
        return ""
    both = 0 < left_out < failed
    parts = ["left out" if left_out == failed else f"{left_out} left out"] if left_out else []
    if counted := failed - left_out:
        parts.append(f"{f'{counted} ' if both else ''}with the failure table's reward")
    return f"{failed} of {n} failed, {', '.join(parts)}: {_one_line(reason)}"


def _one_line(reason: str, length: int = 160) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def _action(kind: str, value: Any) -> FailureAction:
    try:
        given = msgspec.convert(value, _Given)
    except msgspec.ValidationError as error:
        raise ValueError(
            f"failure[{kind!r}] = {value!r}: give a reward, 'retry', 'leave-out', or "
            f"{{retry: true, reward: …}} ({error})"
        ) from None
    action = given if isinstance(given, FailureAction) else FailureAction(retry=given == "retry")
    if isinstance(given, float):
        action = FailureAction(reward=given)
    if action.reward is not None and not math.isfinite(action.reward):
        raise ValueError(f"failure[{kind!r}] = {action.reward}: must be a finite reward, or None (leave out)")
    if action.retry and kind in NOT_RETRYABLE:
        raise ValueError(
            f"failure[{kind!r}]: cannot be tried again, {NOT_RETRYABLE[kind]}; give a reward or 'leave-out'"
        )
    return action
