"""Failed is not zero: what each kind of failure is called, and what it does to a batch."""

from __future__ import annotations

import math

import pytest
from core.credit.builders import make_record

from agentlightning.credit import FAILURES, assign
from agentlightning.credit.failure import failure_of
from agentlightning.types import AttemptStatus, Recipe, Reward, RolloutStatus

RECIPE = Recipe(name="t")
FAILED = RolloutStatus.FAILED


def ended(status=FAILED, attempt=AttemptStatus.FAILED, **fields):
    record = make_record(status=status, **fields)
    assert record.attempt is not None
    record.attempt.status = attempt
    return record


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (ended(), "failed"),
        (ended(calls=[]), "no-call"),
        (ended(attempt=AttemptStatus.TIMEOUT), "timeout"),
        (ended(attempt=AttemptStatus.UNRESPONSIVE), "unresponsive"),
        (ended(status=RolloutStatus.CANCELLED), "cancelled"),
        (ended(reason="over-length: 9000 tokens"), "over-length"),
        (ended(reason="agent-raised"), "agent-raised"),
        (ended(reason="something else"), "failed"),
        (ended(status=RolloutStatus.SUCCEEDED), "no-reward"),
        (ended(status=RolloutStatus.SUCCEEDED, reward=math.nan), "no-reward"),
        (ended(status=RolloutStatus.SUCCEEDED, reward=0.0), None),
        (ended(status=RolloutStatus.SUCCEEDED, rewards=[Reward(value=1.0, agent="A")]), None),
    ],
)
def test_kinds(record, kind):
    assert failure_of(record) == kind
    assert kind is None or kind in FAILURES


def group(*records):
    return [*records, make_record("x", reward=0.0), make_record("y", reward=1.0)]


def advantages(batch):
    return {row.rollout_id: row.segments[0].advantage for row in batch.rows}


@pytest.mark.parametrize("status", [FAILED, RolloutStatus.CANCELLED, RolloutStatus.RUNNING])
def test_a_failed_rollout_is_left_out_even_with_a_reward(status):
    batch = assign(group(make_record("f", reward=1.0, status=status)), RECIPE)
    assert advantages(batch) == {"x": -0.5, "y": 0.5}
    assert batch.ledgers[0].out == {"failed-rollout": 1}
    assert (batch.metrics["rollouts_failed"], batch.metrics["reward_mean"]) == (1, 0.5)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_missing_reward_is_no_zero(value):
    records = group(make_record("f", rewards=[Reward(value=value)] if value is not None else []))
    batch = assign(records, RECIPE)
    assert advantages(batch) == {"x": -0.5, "y": 0.5}
    assert batch.ledgers[0].out == {"no-reward": 1}
    assert (batch.metrics["rollouts_no_reward"], batch.metrics["rollouts_failed"]) == (1, 0)
    assert (batch.metrics["reward_count"], batch.metrics["reward_mean"]) == (2, 0.5)


def test_a_table_can_give_a_kind_a_reward():
    records = group(make_record("f", status=FAILED, reason="timeout: 60 s", rewards=[Reward(value=9.0)]))
    batch = assign(records, RECIPE, failure={"timeout": -1.0, "failed": None})
    assert advantages(batch) == {"f": -1.0, "x": 0.0, "y": 1.0}
    assert batch.ledgers[0].trained == 1
    assert (batch.metrics["failed/timeout"], batch.metrics["reward_mean"]) == (1, 0.0)


def test_other_kinds_and_those_left_out_by_name_stay_out():
    record = make_record("f", status=FAILED, reason="model-5xx", reward=9.0)
    for table in ({"timeout": -1.0}, {"model-5xx": None}):
        batch = assign(group(record), RECIPE, failure=table)
        assert advantages(batch) == {"x": -0.5, "y": 0.5}
        assert batch.metrics["reward_mean"] == 0.5


@pytest.mark.parametrize(
    ("table", "words"), [({"tiemout": 0.0}, "tiemout.*timeout"), ({"timeout": math.nan}, "timeout.*finite")]
)
def test_bad_tables_are_named(table, words):
    with pytest.raises(ValueError, match=words):
        assign([], RECIPE, failure=table)
