"""The ends of an attempt: one table, each row tested."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import torch

from agentlightning.runner.outcome import Outcome, cancelled, failed, overdue, settle
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
    ("error", "reason"),
    [
        (ValueError("no such tool"), "agent-raised: ValueError: no such tool"),
        (KeyError(), "agent-raised: KeyError: no message"),
        (TimeoutError("the agent's own"), "agent-raised: TimeoutError: the agent's own"),
        (SystemExit(0), "agent-raised: SystemExit: 0"),
        (asyncio.CancelledError(), "agent-raised: CancelledError: no message"),
    ],
)
def test_raised(error: BaseException, reason: str) -> None:
    outcome = failed(error)
    assert (outcome.status, outcome.reason, outcome.reward) == (AttemptStatus.FAILED, reason, None)


def test_ended_from_outside() -> None:
    assert overdue(5.0) == Outcome(AttemptStatus.TIMEOUT, "timeout: the attempt took longer than 5 s")
    assert cancelled() == Outcome(AttemptStatus.FAILED, "cancelled: the attempt was stopped from outside")


def test_scalars_of_array_libraries_are_numbers() -> None:
    for value in (np.float32(0.5), np.float64(0.5), np.array(0.5), torch.tensor(0.5)):
        assert settle(value) == Outcome(AttemptStatus.SUCCEEDED, reward=0.5)
    assert settle(np.bool_(True)).reward == 1.0 and settle(np.int64(3)).reward == 3.0
    assert (settle(np.array([0.5])).reason or "").startswith("bad-reward: the agent returned ndarray")
