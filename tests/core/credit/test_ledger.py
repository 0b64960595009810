"""The ledger accounts for every call, whatever happened; a failure with a reward is a rollout with it."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import msgspec
from core.credit.builders import PATIENT, make_record, make_wire, one_call, world
from hypothesis import given, strategies as st

from agentlightning import semconv
from agentlightning.credit import assign
from agentlightning.credit.rollout_reward import failure_of
from agentlightning.credit.rules import RULES
from agentlightning.credit.verdicts import unrecorded
from agentlightning.types import (
    AttemptStatus,
    Call,
    EarlierAttempt,
    Recipe,
    Record,
    Reward,
    RolloutStatus,
    Span,
)
from agentlightning.types.failure import read_failure_table

ENDS = ("timeout", "agent-raised", "model-5xx", "straggler", "over-length", "something else")
TABLE = read_failure_table({"timeout": -1.0, "no-call": 0.25, "no-reward": -0.5, "over-length": 0.0})


def eventful(random: Random) -> list[Record]:
    """A world in which, besides, attempts were given up, agents handed in their own records, calls went past
    the gateway, prompts were too long, and choices were guided.
    """
    records = world(random)
    for record in records:
        rollout_id = record.rollout.rollout_id
        assert record.attempt is not None
        if record.rollout.status is not RolloutStatus.SUCCEEDED:
            record.rollout.reason = random.choice(ENDS)
            if random.random() < 0.3:
                record.rollout.status = RolloutStatus.CANCELLED
        for n in range(random.choice([0, 0, 1, 2])):
            record.earlier.append(
                EarlierAttempt(
                    attempt_id=f"{rollout_id}-e{n}",
                    status=random.choice(
                        [AttemptStatus.FAILED, AttemptStatus.UNRESPONSIVE, AttemptStatus.SUCCEEDED]
                    ),
                    calls=random.randint(0, 4),
                )
            )
        record.wire = [make_wire(call) for call in record.calls if call.span_id and random.random() < 0.5]
        for n in range(random.choice([0, 0, 0, 1, 2])):
            record.wire.append(
                Span(
                    rollout_id=rollout_id,
                    attempt_id=f"{rollout_id}-a",
                    name="chat",
                    span_id=f"past{n}",
                    status=random.choice(["ok", "error"]),
                    attributes={semconv.RESPONSE_ID: f"p{n}"},
                )
            )
        for call in record.calls:
            if random.random() < 0.1:
                call.status, call.masked = "error", "over-length"
                call.edited = {"over_length": random.choice(["error", "drop"])}
            if random.random() < 0.1 and call.response_ids:
                call.allowed = [list(call.response_ids)]
        if record.calls and random.random() < 0.2:
            own = Call(
                call_id=f"{rollout_id}-supplied.0",
                rollout_id=rollout_id,
                attempt_id=f"{rollout_id}-a",
                sequence=99,
                api="supplied",
                policy="p",
                prompt_ids=[1, 2],
                response_ids=[3],
                logprobs=[-1.0],
            )
            record.calls.append(own)
            named = [call.call_id for call in record.calls if random.random() < 0.5]
            record.attempt.metadata = {semconv.SUPPLIED: named}
        if random.random() < 0.3:
            record.calls, record.rewards = [], [Reward(value=1.0)]
    return records


worlds = st.randoms(use_true_random=False).map(eventful)
recipes = st.builds(
    Recipe,
    name=st.just("t"),
    credit=st.sampled_from(sorted(RULES)),
    baseline=st.sampled_from(["group", "rloo", "batch", "none"]),
    scale=st.sampled_from(["none", "std"]),
    loss_aggregation=st.sampled_from(["rollout", "call", "token"]),
    filter_zero_std_groups=st.booleans(),
    merge=st.booleans(),
)
tables = st.sampled_from([{}, TABLE])


@PATIENT
@given(worlds, recipes, tables)
def test_the_ledgers_sum_to_what_was_recorded_and_what_was_not(records, recipe, table):
    out: dict[str, str] = {}
    batch = assign(records, recipe, version=1, failure=table, out=out)
    recorded = sum(len(r.calls) + sum(e.calls for e in r.earlier) for r in records)
    past = sum(len(unrecorded(r)) for r in records)
    assert sum(ledger.made for ledger in batch.ledgers) == recorded + past == batch.metrics["calls"]
    assert sum(ledger.recorded for ledger in batch.ledgers) == recorded
    assert all(ledger.sums for ledger in batch.ledgers)
    trained = {s.call_id for row in batch.rows for s in row.segments if s.trained}
    every = {call.call_id for record in records for call in record.calls}
    assert trained | out.keys() == every and trained.isdisjoint(out)
    reasons = Counter(out.values()) + Counter(
        {"other-attempt": sum(e.calls for r in records for e in r.earlier), "not-recorded": past}
    )
    assert reasons == sum((Counter(ledger.left_out) for ledger in batch.ledgers), Counter())
    judged = sum(sum(ledger.verdicts.values()) for ledger in batch.ledgers)
    assert judged == batch.metrics["calls_recorded"] - batch.metrics.get("left_out/other-attempt", 0)


@PATIENT
@given(worlds, recipes, tables)
def test_a_failure_with_a_reward_is_a_rollout_that_ended_with_it(records, recipe, table):
    """Rows, groups and means are those of a world in which it succeeded with that reward, and those left out
    had never been.
    """
    plain: list[Record] = []
    for record in records:
        kind = failure_of(record)
        if kind is None:
            plain.append(record)
        elif kind in table and table[kind].reward is not None:
            rollout = msgspec.structs.replace(record.rollout, status=RolloutStatus.SUCCEEDED)
            calls = [msgspec.structs.replace(call, edited={}) for call in record.calls]
            rewards = [Reward(value=table[kind].reward)]
            plain.append(msgspec.structs.replace(record, rollout=rollout, calls=calls, rewards=rewards))
    given_, wanted = (
        assign(records, recipe, version=1, failure=table),
        assign(plain, recipe, version=1, failure=table),
    )
    assert given_.rows == wanted.rows
    for name in ("groups", "groups_of_one", "groups_zero_std", "tokens_trained"):
        assert given_.metrics[name] == wanted.metrics[name]


@PATIENT
@given(worlds, recipes, tables)
def test_who_made_no_call_moves_no_baseline(records, recipe, table):
    there = assign(records, recipe, version=1, failure=table)
    without = assign([r for r in records if failure_of(r) != "no-call"], recipe, version=1, failure=table)
    assert there.rows == without.rows


def test_a_reward_by_the_table_stands_for_all_that_was_emitted():
    emitted = [Reward(value=1.0), Reward(value=math.nan, call_id="r0-c0"), Reward(value=9.0, name="style")]
    late = make_record(rewards=emitted, status=RolloutStatus.FAILED, reason="timeout: 60 s")
    others = [make_record("r1", reward=1.0), make_record("r2", reward=0.0)]
    batch = assign([late, *others], Recipe(name="t"), failure=read_failure_table({"timeout": -1.0}))
    assert [row.advantages[-1] for row in batch.rows] == [-1.0, 1.0, 0.0]
    assert batch.metrics["reward_mean"] == 0.0 and "reward/style" not in batch.metrics


def test_a_call_without_a_number_is_out_and_the_others_are_not():
    calls = [one_call(sequence=n) for n in range(3)]
    own = [Reward(value=v, call_id=c.call_id) for v, c in zip([1.0, math.nan, -1.0], calls, strict=True)]
    out: dict[str, str] = {}
    batch = assign(
        [make_record(calls=calls, rewards=own)], Recipe(name="t", credit="per_call", baseline="none"), out=out
    )
    assert out == {"r0-c1": "no-reward"} and batch.ledgers[0].trained == 2
    assert sorted(s.advantage for row in batch.rows for s in row.segments) == [-1.0, 1.0]


def test_a_call_past_the_gateway_that_failed_is_no_answer():
    lost = Span(rollout_id="r0", attempt_id="r0-a", name="chat", span_id="x", status="error")
    record = make_record(calls=[], reward=1.0, wire=[lost])
    assert failure_of(record) == "no-call"
    assert assign([record], Recipe(name="t")).ledgers[0].left_out == {"not-recorded": 1}
