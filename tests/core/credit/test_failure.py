"""Failed is not zero: what each kind of failure is called, and what it does to a batch."""

from __future__ import annotations

import math

import pytest
from core.credit.builders import make_call, make_record, make_wire, one_call

from agentlightning.credit import assign
from agentlightning.credit.rollout_reward import failure_of
from agentlightning.types import AttemptStatus, EarlierAttempt, Recipe, Reward, RolloutStatus
from agentlightning.types.failure import FAILURE_KINDS, FailureAction, read_failure_table

RECIPE = Recipe(name="t")
FAILED = RolloutStatus.FAILED
TOO_LONG = one_call(sequence=1, status="error", masked="over-length", edited={"over_length": "drop"})


def ended(status=FAILED, attempt=AttemptStatus.FAILED, **fields):
    record = make_record(status=status, **fields)
    assert record.attempt is not None
    record.attempt.status = attempt
    return record


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (ended(), "failed"),
        (ended(calls=[]), "failed"),
        (ended(attempt=AttemptStatus.TIMEOUT, reason="longer than timeout_seconds"), "timeout"),
        (ended(attempt=AttemptStatus.TIMEOUT), "timeout"),
        (ended(attempt=AttemptStatus.UNRESPONSIVE), "unresponsive"),
        (ended(status=RolloutStatus.CANCELLED), "cancelled"),
        (ended(status=RolloutStatus.CANCELLED, attempt=AttemptStatus.TIMEOUT), "cancelled"),
        (ended(status=RolloutStatus.CANCELLED, reason="straggler: 3 of 4 suffice"), "straggler"),
        (ended(reason="over-length: 9000 tokens"), "over-length"),
        (ended(reason="agent-raised"), "agent-raised"),
        (ended(reason="something else"), "failed"),
        (ended(status=RolloutStatus.SUCCEEDED), "no-reward"),
        (ended(status=RolloutStatus.SUCCEEDED, calls=[]), "no-call"),
        (ended(status=RolloutStatus.SUCCEEDED, calls=[], reward=1.0), "no-call"),
        (ended(status=RolloutStatus.SUCCEEDED, calls=[one_call(status="error")], reward=1.0), "no-call"),
        (
            ended(status=RolloutStatus.SUCCEEDED, calls=[make_call("c", [1], None, status="cancelled")]),
            "no-call",
        ),
        (ended(status=RolloutStatus.SUCCEEDED, calls=[one_call(status="cancelled")], reward=1.0), None),
        (ended(status=RolloutStatus.SUCCEEDED, calls=[one_call(), TOO_LONG], reward=1.0), "over-length"),
        (ended(status=RolloutStatus.SUCCEEDED, calls=[], reward=1.0, wire=[make_wire(one_call())]), None),
        (ended(status=RolloutStatus.SUCCEEDED, reward=math.nan), "no-reward"),
        (ended(status=RolloutStatus.SUCCEEDED, reward=0.0), None),
        (ended(status=RolloutStatus.SUCCEEDED, rewards=[Reward(value=1.0, agent="A")]), None),
    ],
)
def test_kinds(record, kind):
    assert failure_of(record) == kind
    assert kind is None or kind in FAILURE_KINDS


def group(*records):
    return [*records, make_record("x", reward=0.0), make_record("y", reward=1.0)]


def advantages(batch):
    return {row.rollout_id: row.segments[0].advantage for row in batch.rows}


@pytest.mark.parametrize("status", [FAILED, RolloutStatus.CANCELLED, RolloutStatus.RUNNING])
def test_a_failed_rollout_is_left_out_even_with_a_reward(status):
    batch = assign(group(make_record("f", reward=1.0, status=status)), RECIPE)
    assert advantages(batch) == {"x": -0.5, "y": 0.5}
    assert batch.ledgers[0].left_out == {"failed-rollout": 1}
    assert (batch.metrics["rollouts_failed"], batch.metrics["reward_mean"]) == (1, 0.5)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_missing_reward_is_no_zero(value):
    records = group(make_record("f", rewards=[Reward(value=value)] if value is not None else []))
    batch = assign(records, RECIPE)
    assert advantages(batch) == {"x": -0.5, "y": 0.5}
    assert batch.ledgers[0].left_out == {"no-reward": 1}
    assert (batch.metrics["rollouts_no_reward"], batch.metrics["rollouts_failed"]) == (1, 0)
    assert (batch.metrics["reward_count"], batch.metrics["reward_mean"]) == (2, 0.5)


def test_a_rule_that_reads_no_reward_credits_a_rollout_without_one_and_no_failed_one():
    def even(record, recipe):
        return {call.call_id: 0.25 for call in record.calls}

    records = group(make_record("f"), make_record("g", status=FAILED))
    recipe = Recipe(name="even", credit="even", baseline="none", group_size=1)
    plain = assign(records, recipe, rules={"even": even})
    assert {row.rollout_id for row in plain.rows} == {"x", "y"}
    even.credits_unrewarded = True
    batch = assign(records, recipe, rules={"even": even})
    assert advantages(batch) == {"x": 0.25, "y": 0.25, "f": 0.25}
    assert (batch.metrics["rollouts_no_reward"], batch.metrics["rollouts_failed"]) == (0, 1)
    assert batch.metrics["reward_count"] == 2 and all(ledger.sums for ledger in batch.ledgers)


def test_a_table_can_give_a_kind_a_reward():
    records = group(make_record("f", status=FAILED, reason="timeout: 60 s", rewards=[Reward(value=9.0)]))
    batch = assign(records, RECIPE, failure=read_failure_table({"timeout": -1.0, "failed": None}))
    assert advantages(batch) == {"f": -1.0, "x": 0.0, "y": 1.0}
    assert batch.ledgers[0].trained == 1
    assert (batch.metrics["failed/timeout"], batch.metrics["reward_mean"]) == (1, 0.0)


def test_other_kinds_and_those_left_out_by_name_stay_out():
    record = make_record("f", status=FAILED, reason="model-5xx", reward=9.0)
    for table in ({"timeout": -1.0}, {"model-5xx": None}, {"model-5xx": "retry"}):
        batch = assign(group(record), RECIPE, failure=read_failure_table(table))
        assert advantages(batch) == {"x": -0.5, "y": 0.5}
        assert batch.metrics["reward_mean"] == 0.5


def test_who_got_no_answer_moves_nobody_and_is_no_mean() -> None:
    calls = [
        one_call("f", status="error", error="HTTP 503 busy"),
        make_call("g", [1], None, 1, rollout_id="f", status="cancelled"),
    ]
    batch = assign(group(make_record("f", calls=calls, reward=9.0)), RECIPE)
    assert advantages(batch) == {"x": -0.5, "y": 0.5}
    assert batch.ledgers[0].left_out == {"error": 1, "cancelled": 1}
    assert (batch.metrics["failed/no-call"], batch.metrics["reward_mean"]) == (1, 0.5)


def test_a_reward_for_what_made_no_call_counts_and_still_moves_nobody() -> None:
    batch = assign(
        group(make_record("f", calls=[], reward=9.0)), RECIPE, failure=read_failure_table({"no-call": -1.0})
    )
    assert advantages(batch) == {"x": -0.5, "y": 0.5}
    assert (batch.metrics["reward_count"], batch.metrics["reward_mean"]) == (3, 0.0)


def test_calls_of_earlier_attempts_are_in_the_ledger_and_in_no_row() -> None:
    record = make_record("f", reward=1.0)
    record.earlier = [
        EarlierAttempt(attempt_id="f-1", status=AttemptStatus.TIMEOUT, calls=2),
        EarlierAttempt(attempt_id="f-2", status=AttemptStatus.FAILED, reason="model-5xx: gone", calls=1),
        EarlierAttempt(attempt_id="f-3", status=AttemptStatus.FAILED, reason="model-5xx: gone"),
    ]
    batch = assign(group(record), RECIPE)
    ledger = batch.ledgers[0]
    assert (ledger.made, ledger.recorded, ledger.trained, ledger.left_out) == (4, 4, 1, {"other-attempt": 3})
    assert ledger.sums and (batch.metrics["calls"], batch.metrics["left_out/other-attempt"]) == (6, 3)
    assert (batch.metrics["retried/timeout"], batch.metrics["retried/model-5xx"]) == (1, 2)
    assert batch.metrics["verdicts/gateway-only"] == 3 and batch.metrics["exact"] == 0


@pytest.mark.parametrize("action", [FailureAction(), FailureAction(retry=True)])
def test_only_a_reward_brings_a_failure_into_a_batch(action: FailureAction) -> None:
    batch = assign(
        group(make_record("f", status=FAILED)), RECIPE, failure=dict.fromkeys(FAILURE_KINDS, action)
    )
    assert advantages(batch) == {"x": -0.5, "y": 0.5}
