"""How an attempt ended, in one place: what the agent returned or raised → status, reason, reward.

Failed is not zero: an attempt that raised, ran out of time or returned nonsense has no reward.
"""

from __future__ import annotations

import asyncio
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
    if result is None:
        return Outcome(AttemptStatus.SUCCEEDED)
    if isinstance(result, Real):
        value = float(result)
        if math.isfinite(value):
            return Outcome(AttemptStatus.SUCCEEDED, reward=value)
        return Outcome(
            AttemptStatus.FAILED, f"bad-reward: the agent returned {value}, which is not a finite number"
        )
    if (
        isinstance(result, Sequence)
        and not isinstance(result, str | bytes)
        and all(isinstance(s, Span) for s in result)
    ):
        return Outcome(AttemptStatus.SUCCEEDED, spans=result)
    return Outcome(
        AttemptStatus.FAILED,
        f"bad-reward: the agent returned {type(result).__name__}; "
        "return a number, None (after emit_reward), or spans",
    )


def failed(error: BaseException, timeout: float | None) -> Outcome:
    """What a raised error means."""
    if isinstance(error, TimeoutError) and timeout is not None:
        return Outcome(AttemptStatus.TIMEOUT, f"timeout: the attempt took longer than {timeout:g} s")
    if isinstance(error, asyncio.CancelledError):
        return Outcome(AttemptStatus.FAILED, "cancelled: the attempt was stopped from outside")
    text = str(error).strip() or "no message"
    return Outcome(AttemptStatus.FAILED, f"agent-raised: {type(error).__name__}: {text[:2000]}")
