"""Rows and weights: ids in their places, and sums as ``loss_aggregation`` says."""

from __future__ import annotations

import pytest
from core.credit.builders import PATIENT, make_call, make_record, one_call, worlds
from hypothesis import given, strategies as st

from agentlightning.credit import assign
from agentlightning.types import Recipe, Reward, Row


def branching(rollout_id="r0", **fields):
    """a then b; and c, which goes on from a as b did."""
    calls = [
        make_call(f"{rollout_id}a", [1], [2], 0, rollout_id=rollout_id, policy_version=4),
        make_call(f"{rollout_id}b", [1, 2, 3], [4, 5], 1, rollout_id=rollout_id, policy_version=5),
        make_call(f"{rollout_id}c", [1, 2, 6], [7], 2, rollout_id=rollout_id, policy_version=5),
    ]
    return make_record(rollout_id, calls, **fields)


def test_a_row_in_full():
    fresh = one_call("r1", policy_version=5)
    records = [branching(reward=1.0), make_record("r1", [fresh], reward=0.0)]
    batch = assign(records, Recipe(name="t", loss_aggregation="token", max_staleness=1), version=5)
    first, branch, _ = batch.rows
    assert batch.metrics["staleness_max"] == 1  # one token of six
    assert batch.metrics["staleness_mean"] == pytest.approx(1 / 6, rel=1e-12)
    assert first.token_ids == [1, 2, 3, 4, 5]
    assert first.mask == [0, 1, 0, 1, 1]
    assert first.advantages == [0.0, 0.5, 0.0, 0.5, 0.5]
    assert first.logprobs == [0.0, -0.5, 0.0, -0.5, -0.51]
    assert first.weights == pytest.approx([0, 1 / 6, 0, 1 / 6, 1 / 6], rel=1e-12)
    assert first.versions == [-1, 4, -1, 5, 5]
    assert [(s.call_id, s.start, s.end, s.advantage, s.trained) for s in first.segments] == [
        ("r0a", 1, 2, 0.5, True),
        ("r0b", 3, 5, 0.5, True),
    ]
    assert (first.row_id, first.rollout_id, first.policy, first.temperature) == (
        "r0/0",
        "r0",
        "default",
        1.0,
    )
    assert first.metadata["staleness"] == 1
    assert branch.token_ids == [1, 2, 6, 7]
    assert branch.mask == [0, 0, 0, 1]
    assert branch.versions == [-1, -1, -1, 5]
    assert [(s.call_id, s.trained) for s in branch.segments] == [("r0a", False), ("r0c", True)]
    assert branch.metadata["staleness"] == 0


def test_tokens_of_a_call_that_weights_changed_under_keep_their_versions():
    call = one_call(n=3, policy_version=4, policy_versions=[4, 5, 5])
    batch = assign([make_record(calls=[call], reward=1.0)], Recipe(name="t", max_staleness=1), version=5)
    (row,) = batch.rows
    assert row.versions == [-1, -1, 4, 5, 5] and row.metadata["staleness"] == 1
    assert batch.metrics["staleness_max"] == 1
    assert batch.metrics["staleness_mean"] == pytest.approx(1 / 3, rel=1e-12)
    strict = assign([make_record(calls=[call], reward=1.0)], Recipe(name="t"), version=5)
    assert not strict.rows and strict.metrics["left_out/stale"] == 1, "its oldest token decides"


def test_guided_choice_stands_at_the_start_of_its_segment():
    calls = [
        make_call("a", [1], [2], 0, allowed=[[2], [3]]),
        make_call("b", [1, 2, 3], [4, 5], 1, allowed=[[4, 5], [6]]),
    ]
    row = assign([make_record(calls=calls, reward=1.0)], Recipe(name="t")).rows[0]
    assert row.allowed == {1: [[2], [3]], 3: [[4, 5], [6]]}


def test_the_temperature_of_a_row_is_that_of_its_calls():
    calls = [one_call(temperature=0.5), one_call(sequence=1, sampling={})]
    rows = assign([make_record(calls=calls, reward=1.0)], Recipe(name="t", temperature=0.8)).rows
    assert [row.temperature for row in rows] == [0.5, 0.8]


def test_an_unknown_version_is_minus_one_and_counted():
    batch = assign(
        [make_record(calls=[one_call(policy_version=None)], reward=1.0)], Recipe(name="t"), version=9
    )
    assert batch.rows[0].versions == [-1] * 4
    assert batch.metrics["tokens_version_unknown"] == 2
    assert "staleness" not in batch.rows[0].metadata and "staleness_mean" not in batch.metrics


# Three rollouts: r0 has calls of 1, 2 and 1 tokens in two rows, r1 one call of 2, r2 one of 4.
WEIGHTS = {
    "rollout": {"r0a": 1 / 12, "r0b": 1 / 12, "r0c": 1 / 12, "r1-c0": 1 / 6, "r2-c0": 1 / 12},
    "nested": {"r0a": 1 / 9, "r0b": 1 / 18, "r0c": 1 / 9, "r1-c0": 1 / 6, "r2-c0": 1 / 12},
    "call": {"r0a": 1 / 5, "r0b": 1 / 10, "r0c": 1 / 5, "r1-c0": 1 / 10, "r2-c0": 1 / 20},
    "token": dict.fromkeys(["r0a", "r0b", "r0c", "r1-c0", "r2-c0"], 1 / 10),
    "constant": dict.fromkeys(["r0a", "r0b", "r0c", "r1-c0", "r2-c0"], 1 / 15),
}


@pytest.mark.parametrize("loss_aggregation", sorted(WEIGHTS))
@pytest.mark.parametrize("merge", [True, False])
def test_weights_by_hand(loss_aggregation, merge):
    records = [branching(reward=1.0), make_record("r1", reward=0.0)]
    records.append(make_record("r2", [one_call("r2", n=4)], reward=0.5))
    recipe = Recipe(name="t", loss_aggregation=loss_aggregation, loss_divisor=5.0, merge=merge)
    found = {
        s.call_id: row.weights[s.start : s.end]
        for row in assign(records, recipe).rows
        for s in row.segments
        if s.trained
    }
    for call_id, expected in WEIGHTS[loss_aggregation].items():
        assert found[call_id] == pytest.approx([expected] * len(found[call_id]), rel=1e-12)


def test_policies_are_weighted_each_by_itself():
    calls = [one_call(sequence=0, policy="p"), one_call(sequence=1, n=6, policy="q")]
    rows = assign([make_record(calls=calls, reward=1.0)], Recipe(name="t")).rows
    assert [sum(row.weights) for row in rows] == pytest.approx([1.0, 1.0])


def test_zero_spread_groups_weigh_nothing_once_dropped():
    records = [make_record(f"r{i}", group="flat", reward=1.0) for i in range(3)]
    records += [make_record(f"s{i}", group="live", reward=float(i)) for i in range(2)]
    records.append(make_record("alone", group="one", reward=1.0))
    kept = assign(records, Recipe(name="t"))
    assert (len(kept.rows), kept.metrics["groups_zero_std"], kept.metrics["groups_of_one"]) == (6, 1, 1)
    assert [sum(row.weights) for row in kept.rows] == pytest.approx([1 / 6] * 6)
    dropped = assign(records, Recipe(name="t", filter_zero_std_groups=True))
    assert {row.rollout_id for row in dropped.rows} == {"s0", "s1"}
    assert [sum(row.weights) for row in dropped.rows] == pytest.approx([1 / 2] * 2)
    out = {ledger.rollout_id: ledger.left_out for ledger in dropped.ledgers}
    assert (out["r0"], out["alone"], out["s0"]) == ({"zero-std": 1}, {"group-of-one": 1}, {})
    assert all(ledger.sums for ledger in dropped.ledgers)


def test_without_a_baseline_nothing_is_dropped_for_being_equal():
    records = [make_record(f"r{i}", reward=1.0) for i in range(3)]
    batch = assign(records, Recipe(name="t", baseline="none", filter_zero_std_groups=True))
    assert [row.segments[0].advantage for row in batch.rows] == [1.0, 1.0, 1.0]


RECIPES = st.builds(
    Recipe,
    name=st.just("t"),
    credit=st.sampled_from(["broadcast", "last", "per_call", "discounted", "per_agent"]),
    baseline=st.sampled_from(["group", "rloo", "batch", "none"]),
    group_by=st.sampled_from([["group"], ["batch"], ["group", "agent"], ["task"], ["group", "policy"]]),
    scale=st.sampled_from(["std", "none"]),
    loss_aggregation=st.sampled_from(["rollout", "nested", "call", "token", "constant"]),
    loss_divisor=st.sampled_from([1.0, 7.5]),
    gamma=st.sampled_from([0.0, 0.5, 1.0]),
    max_staleness=st.integers(0, 2),
    merge=st.booleans(),
    filter_zero_std_groups=st.booleans(),
)


@PATIENT
@given(worlds(), RECIPES)
def test_weights_sum_as_normalise_says(records, recipe):
    rows = assign(records, recipe, version=2).rows
    for policy in {row.policy for row in rows}:
        of_policy: list[Row] = [row for row in rows if row.policy == policy]
        rollouts = {row.rollout_id for row in of_policy}
        tokens = sum(row.trained_tokens for row in of_policy)
        total = sum(sum(row.weights) for row in of_policy)
        constant = recipe.loss_aggregation == "constant"
        assert total == pytest.approx(
            tokens / (len(rollouts) * recipe.loss_divisor) if constant else 1.0, rel=1e-12
        )
        if recipe.loss_aggregation == "rollout":
            for rollout in rollouts:
                share = sum(sum(row.weights) for row in of_policy if row.rollout_id == rollout)
                assert share == pytest.approx(1 / len(rollouts), rel=1e-12)
        if recipe.loss_aggregation == "call":
            shares = [
                sum(row.weights[s.start : s.end]) for row in of_policy for s in row.segments if s.trained
            ]
            assert shares == pytest.approx([1 / len(shares)] * len(shares), rel=1e-12)


def test_a_reward_for_one_call_reaches_its_tokens_only():
    record = branching(rewards=[Reward(value=2.0, call_id="r0b")])
    recipe = Recipe(name="t", credit="per_call", baseline="none")
    (row,) = assign([record], recipe).rows
    assert row.token_ids == [1, 2, 3, 4, 5]
    assert row.advantages == [0.0, 0.0, 0.0, 2.0, 2.0]
    assert row.mask == [0, 0, 0, 1, 1]
