"""The ends of an attempt: one table, each row tested."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentlightning.runner.outcome import failed, settle
from agentlightning.types import AttemptStatus, Span

SPAN = Span(rollout_id="r", attempt_id="a", name="x")


@pytest.mark.parametrize(
    ("result", "status", "reward", "reason"),
    [
        (1, AttemptStatus.SUCCEEDED, 1.0, None),
        (0.25, AttemptStatus.SUCCEEDED, 0.25, None),
        (True, AttemptStatus.SUCCEEDED, 1.0, None),
        (None, AttemptStatus.SUCCEEDED, None, None),
        ([SPAN], AttemptStatus.SUCCEEDED, None, None),
        (math.nan, AttemptStatus.FAILED, None, "bad-reward: the agent returned nan"),
        (math.inf, AttemptStatus.FAILED, None, "bad-reward: the agent returned inf"),
        ("0.5", AttemptStatus.FAILED, None, "bad-reward: the agent returned str"),
        ({"reward": 1}, AttemptStatus.FAILED, None, "bad-reward: the agent returned dict"),
        ([1.0], AttemptStatus.FAILED, None, "bad-reward: the agent returned list"),
    ],
)
def test_returned(result: object, status: AttemptStatus, reward: float | None, reason: str | None) -> None:
    outcome = settle(result)
    assert (outcome.status, outcome.reward) == (status, reward)
    assert outcome.reason is None if reason is None else (outcome.reason or "").startswith(reason)


@pytest.mark.parametrize(
    ("error", "timeout", "status", "reason"),
    [
        (ValueError("no such tool"), 5.0, AttemptStatus.FAILED, "agent-raised: ValueError: no such tool"),
        (KeyError(), None, AttemptStatus.FAILED, "agent-raised: KeyError: no message"),
        (TimeoutError(), 5.0, AttemptStatus.TIMEOUT, "timeout: the attempt took longer than 5 s"),
        (
            TimeoutError("the agent's own"),
            None,
            AttemptStatus.FAILED,
            "agent-raised: TimeoutError: the agent's own",
        ),
        (
            asyncio.CancelledError(),
            None,
            AttemptStatus.FAILED,
            "cancelled: the attempt was stopped from outside",
        ),
    ],
)
def test_raised(error: BaseException, timeout: float | None, status: AttemptStatus, reason: str) -> None:
    outcome = failed(error, timeout)
    assert (outcome.status, outcome.reason, outcome.reward) == (status, reason, None)
