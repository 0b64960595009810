"""How an attempt ended, in one place: what the agent returned or raised → status, reason, reward.

Failed is not zero: an attempt that raised, ran out of time or returned nonsense has no reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from agentlightning.types import AttemptStatus, Span


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt."""

    status: AttemptStatus
    reason: str | None = None
    reward: float | None = None
    spans: Sequence[Span] = ()


def settle(result: Any) -> Outcome:
    """What a returned value means. A number is the final reward; ``None`` says that rewards were emitted."""
    result = _unwrapped(result)
    if result is None:
        return Outcome(AttemptStatus.SUCCEEDED)
    if isinstance(result, Real):
        value = float(result)
        if math.isfinite(value):
            return Outcome(AttemptStatus.SUCCEEDED, reward=value)
        return _bad(f"{value}, which is not a finite number")
    listed = isinstance(result, Sequence) and not isinstance(result, str | bytes)
    if listed and all(isinstance(span, Span) for span in result):
        return Outcome(AttemptStatus.SUCCEEDED, spans=result)
    return _bad(f"{type(result).__name__}; return a number, None (after emit_reward), or spans")


def _unwrapped(result: Any) -> Any:
    """The Python number in a scalar of an array library (numpy, torch)."""
    item = getattr(result, "item", None)
    if callable(item) and getattr(result, "shape", None) == ():
        return item()
    return result


def _bad(what: str) -> Outcome:
    return Outcome(AttemptStatus.FAILED, f"bad-reward: the agent returned {what}")


def failed(error: BaseException) -> Outcome:
    """What the agent raised, its own timeouts included."""
    text = str(error).strip() or "no message"
    return Outcome(AttemptStatus.FAILED, f"agent-raised: {type(error).__name__}: {text[:2000]}")


def overdue(timeout: float | None) -> Outcome:
    """The attempt's limit has passed."""
    return Outcome(AttemptStatus.TIMEOUT, f"timeout: the attempt took longer than {timeout:g} s")


def cancelled() -> Outcome:
    """The runner was told to stop it: its lease went to another, or serving ended."""
    return Outcome(AttemptStatus.FAILED, "cancelled: the attempt was stopped from outside")
