"""The ends of an attempt: one table, each row tested."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch

from agentlightning.runner.ending import classify, model_fault
from agentlightning.runner.outcome import Outcome, cancelled, outcome_of_error, read_return, timed_out
from agentlightning.semconv import REWARD_VALUE
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Call,
    Mode,
    Rollout,
    RolloutConfig,
    Span,
)

OF_V03 = "a list of Span is the agent's own record: it comes with agl-v03, which is not installed"


def reward_of(outcome: Outcome) -> float | None:
    values = [span.attributes[REWARD_VALUE] for span in outcome.returned]
    return values[0] if values else None


SPAN = Span(rollout_id="r", attempt_id="a", name="x")


@pytest.mark.parametrize(
    ("result", "status", "reward", "reason"),
    [
        (1, AttemptStatus.SUCCEEDED, 1.0, None),
        (0.25, AttemptStatus.SUCCEEDED, 0.25, None),
        (True, AttemptStatus.SUCCEEDED, 1.0, None),
        (None, AttemptStatus.SUCCEEDED, None, None),
        ([], AttemptStatus.SUCCEEDED, None, None),
        ([SPAN], AttemptStatus.FAILED, None, f"bad-reward: the agent returned list; {OF_V03}"),
        (math.nan, AttemptStatus.FAILED, None, "bad-reward: the agent returned nan"),
        (math.inf, AttemptStatus.FAILED, None, "bad-reward: the agent returned inf"),
        ("0.5", AttemptStatus.FAILED, None, "bad-reward: the agent returned str"),
        ({"reward": 1}, AttemptStatus.FAILED, None, "bad-reward: the agent returned dict"),
        ([1.0], AttemptStatus.FAILED, None, "bad-reward: the agent returned list"),
    ],
)
def test_returned(result: object, status: AttemptStatus, reward: float | None, reason: str | None) -> None:
    outcome = read_return(result)
    assert (outcome.status, reward_of(outcome)) == (status, reward)
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
    outcome = outcome_of_error(error)
    assert (outcome.status, outcome.reason, outcome.returned) == (AttemptStatus.FAILED, reason, [])


def test_ended_from_outside() -> None:
    assert timed_out(5.0) == Outcome(AttemptStatus.TIMEOUT, "timeout: the attempt took longer than 5 s")
    assert cancelled() == Outcome(AttemptStatus.FAILED, "cancelled: the attempt was stopped from outside")


def test_scalars_of_array_libraries_are_numbers() -> None:
    for value in (np.float32(0.5), np.float64(0.5), np.array(0.5), torch.tensor(0.5)):
        assert reward_of(read_return(value)) == 0.5
    assert reward_of(read_return(np.bool_(True))) == 1.0 and reward_of(read_return(np.int64(3))) == 3.0
    assert (read_return(np.array([0.5])).reason or "").startswith("bad-reward: the agent returned ndarray")


# ------------------------------------------------------------------------------- whose fault it was
TOO_LONG = "This model's maximum context length is 64 tokens. However, you requested 90"


def refused(status: int, message: str, code: str | None = None) -> openai.APIStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")
    body = {"message": message, "code": code}
    return openai.APIStatusError(message, response=httpx.Response(status, request=request), body=body)


def test_a_prompt_that_the_sdk_says_is_too_long_is_over_length() -> None:
    for error in (refused(400, TOO_LONG), refused(413, "too long", "context_length_exceeded")):
        assert (outcome_of_error(error).reason or "").startswith("over-length: APIStatusError: ")
        wrapped = ExceptionGroup("two tools failed", [ValueError("x"), RuntimeError("y")])
        wrapped.exceptions[1].__cause__ = error
        assert (outcome_of_error(wrapped).reason or "").startswith(
            "over-length: ExceptionGroup: two tools failed"
        )


@pytest.mark.parametrize(
    "error",
    [refused(500, TOO_LONG), refused(400, "temperature must be a number"), ValueError(TOO_LONG)],
)
def test_what_only_speaks_of_length_is_not(error: Exception) -> None:
    assert (outcome_of_error(error).reason or "").startswith("agent-raised: ")


def test_causes_that_go_in_a_circle_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert outcome_of_error(one).reason == "agent-raised: ValueError: one"


def made(sequence: int, error: str | None = None, **fields: Any) -> Call:
    fields.setdefault("status", "error" if error else "ok")
    ids = {"call_id": f"c{sequence}", "rollout_id": "r", "attempt_id": "a"}
    return Call(**ids, sequence=sequence, error=error, **{"end_time": float(sequence), **fields})


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ([], None),
        ([made(0)], None),
        ([made(0, "HTTP 400 bad: no"), made(1)], None),
        ([made(0), made(1, "HTTP 400 http-400: no such tool")], "model-4xx"),
        ([made(0, "HTTP 429 rate: slow down")], "model-4xx"),
        ([made(0, "HTTP 503 http-503: busy")], "model-5xx"),
        ([made(0, "engine-unreachable: connection refused")], "model-5xx"),
        ([made(0, "engine-timeout: the engine did not answer in time")], "model-5xx"),
        ([made(0, "bad-answer: not JSON")], "model-5xx"),
        ([made(0, "HTTP 400 context_length_exceeded: 90 tokens", masked="over-length")], "over-length"),
        # parallel calls: the one that ended last decides, not those that were stopped because of it
        ([made(0, "HTTP 503 busy", end_time=9.0), made(1, end_time=2.0)], "model-5xx"),
        ([made(0, "HTTP 503 busy"), made(1, "the attempt was closed", status="cancelled")], "model-5xx"),
        ([made(0, "the agent hung up", status="cancelled")], None),
    ],
)
def test_the_last_call_says_whether_the_model_failed_the_agent(calls: list[Call], kind: str | None) -> None:
    assert model_fault(calls) == kind


class Reads:
    """A store that has the calls of an attempt, and counts the queries."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls, self.asked = calls, 0

    async def query_calls(self, rollout_id: str, attempt_id: str) -> Sequence[Call]:
        assert (rollout_id, attempt_id) == ("r", "a")
        self.asked += 1
        return self.calls


def lease(mode: Mode = "train", *retry_on: str) -> AttemptedRollout:
    config = RolloutConfig(retry_on=list(retry_on), max_attempts=2)
    return AttemptedRollout(
        rollout=Rollout(rollout_id="r", mode=mode, config=config),
        attempt=Attempt(attempt_id="a", rollout_id="r"),
    )


async def test_the_reason_keeps_what_the_agent_said() -> None:
    store: Any = Reads([made(0, "HTTP 503 busy")])
    said = await classify(store, lease(), outcome_of_error(RuntimeError("no answer")), calls_recorded=True)
    assert said == Outcome(AttemptStatus.FAILED, "model-5xx: RuntimeError: no answer")
    own = outcome_of_error(RuntimeError("no answer"))
    assert await classify(Reads([made(0)]), lease(), own, calls_recorded=True) == own  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "outcome",
    [cancelled(), timed_out(1.0), read_return("text"), outcome_of_error(refused(400, TOO_LONG))],
)
async def test_other_ends_stay_and_cost_no_read(outcome: Outcome) -> None:
    store: Any = Reads([made(0, "HTTP 503 busy")])
    assert await classify(store, lease("train", "no-call"), outcome, calls_recorded=True) == outcome
    assert store.asked == 0


@pytest.mark.parametrize(
    ("calls", "mode", "retry", "recorded", "status"),
    [
        ([], "train", True, True, AttemptStatus.FAILED),
        ([made(0, "HTTP 503 busy")], "train", True, True, AttemptStatus.FAILED),
        ([made(0)], "train", True, True, AttemptStatus.SUCCEEDED),
        ([made(0, status="cancelled", response_ids=[1])], "train", True, True, AttemptStatus.SUCCEEDED),
        ([made(0, status="cancelled")], "train", True, True, AttemptStatus.FAILED),
        ([], "train", False, True, AttemptStatus.SUCCEEDED),
        ([], "val", True, True, AttemptStatus.SUCCEEDED),
        ([], "train", True, False, AttemptStatus.SUCCEEDED),
    ],
)
async def test_no_call_fails_an_attempt_only_where_it_is_tried_again(
    calls: list[Call], mode: Mode, retry: bool, recorded: bool, status: AttemptStatus
) -> None:
    store: Any = Reads(calls)
    outcome = await classify(
        store, lease(mode, *["no-call"] * retry), read_return(1.0), calls_recorded=recorded
    )
    assert outcome.status is status and store.asked == (mode == "train" and retry and recorded)
    assert status is AttemptStatus.SUCCEEDED or (outcome.reason or "").startswith("no-call: ")
