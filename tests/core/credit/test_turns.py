"""Credits that differ within a rollout: locations by turn, and a spread pooled over the group's residuals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from core.credit.builders import PATIENT, make_record, one_call, worlds
from hypothesis import example, given, strategies as st

from agentlightning.credit import assign, rows_digest
from agentlightning.credit.baselines import EPSILON, Advantages, advantages
from agentlightning.credit.groups import CreditedCall, mean, pooled_std, std, turns
from agentlightning.types import Recipe, Record, Reward

TURNS = ["group", "turn"]
REWARD = st.floats(-1.0, 1.0, allow_subnormal=False)
BUILT_IN = st.sampled_from(["group", "rloo", "batch", "none"])
SCALE = st.sampled_from(["std", "none"])
GROUP_BY = st.sampled_from([["group"], TURNS, ["batch", "turn"], ["group", "agent", "turn"]])
SINGLE = st.lists(st.tuples(REWARD, st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=8)
"""Rollouts of one value each: the value, how many calls, which group."""
PER_CALL = st.lists(st.lists(REWARD, min_size=1, max_size=5), min_size=1, max_size=6)
"""Rollouts, each the rewards of its calls."""


def rewarded(name: str, rewards: Sequence[float], group: str = "g") -> Record:
    """A rollout whose calls have rewards of their own."""
    calls = [one_call(name, sequence=i) for i in range(len(rewards))]
    own = [Reward(value=r, call_id=c.call_id) for c, r in zip(calls, rewards, strict=True)]
    return make_record(name, calls, rewards=own, group=group)


def credited(rollouts: Sequence[Sequence[float]], groups: Sequence[str] | None = None) -> list[CreditedCall]:
    out = []
    for i, rewards in enumerate(rollouts):
        record = rewarded(f"r{i}", rewards, groups[i] if groups else "g")
        out += [
            CreditedCall.of(record.rollout, call, reward, turn)
            for turn, (call, reward) in enumerate(zip(record.calls, rewards, strict=True), start=1)
        ]
    return out


def by_rollout(found: Advantages) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for call, advantage in found.calls.items():
        out.setdefault(call.split("-")[0], []).append(advantage.value)
    return out


def group_counts(found: Advantages) -> tuple[int, int, int]:
    """Numbers of groups, of groups without a spread, and of groups of one rollout."""
    counts = found.counts()
    return counts["groups"], counts["groups_zero_std"], counts["groups_of_one"]


def found(rollouts: Sequence[Sequence[float]], **fields: object) -> tuple[list[list[float]], Advantages]:
    got = advantages(credited(rollouts), Recipe(name="t", **{"scale": "std", "group_by": TURNS, **fields}))
    return list(by_rollout(got).values()), got


# ------------------------------------------------------------------------------- what went wrong, by hand
@pytest.mark.parametrize("group_by", [TURNS, ["group"]])
def test_rollouts_of_equal_means_that_did_opposite_things_are_told_apart(group_by: list[str]) -> None:
    values, got = found([(1.0, -1.0), (-1.0, 1.0)], group_by=group_by)
    # residuals ±1 at each turn: s² = 1/(2 - 1) · (1 + 1) = 2
    assert values == [[pytest.approx(s / (2**0.5 + EPSILON)) for s in signs] for signs in [(1, -1), (-1, 1)]]
    assert got.counts()["groups_zero_std"] == 0


@pytest.mark.parametrize("group_by", [TURNS, ["group"]])
def test_means_that_nearly_agree_do_not_blow_up(group_by: list[str]) -> None:
    values, _ = found([(1.0, -1.0), (-1.0, 1.02)], group_by=group_by)
    assert max(abs(v) for own in values for v in own) < 0.75


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("group_by", [TURNS, ["group"]])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_successes_of_different_length_stay_small(gamma: float, group_by: list[str], scale: str) -> None:
    records = [
        make_record(f"r{i}", [one_call(f"r{i}", sequence=t) for t in range(n)], reward=1.0, sample=i)
        for i, n in enumerate((3, 3, 3, 4))
    ]
    batch = assign(
        records, Recipe(name="t", credit="discounted", gamma=gamma, scale=scale, group_by=group_by)
    )
    largest = max(abs(s.advantage) for row in batch.rows for s in row.segments)
    assert largest < 2.5 if gamma < 1.0 else largest == 0.0


def test_a_turn_is_compared_with_the_same_turn_of_other_rollouts() -> None:
    values, got = found([(5.0, 1.0), (5.0, 3.0), (5.0, 2.0)], scale="none")
    assert values == [[0.0, -1.0], [0.0, 1.0], [0.0, 0.0]]
    assert got.calls["r0-c1"].group == ("group=g", "turn=2") and got.calls["r0-c1"].pool == ("group=g",)
    assert group_counts(got) == (1, 0, 0)


def test_a_turn_that_only_one_rollout_has_is_zero_and_counted() -> None:
    values, got = found([(1.0, 2.0, 9.0), (2.0, 1.0)], scale="none")
    assert values == [[-0.5, 0.5, 0.0], [0.5, -0.5]]
    assert got.calls["r0-c2"].zero_reason == "group-of-one" and got.counts()["calls_unpaired"] == 1
    assert found([(1.0, 1.0), (2.0, 2.0)])[1].counts()["calls_unpaired"] == 0


def test_agents_have_turns_of_their_own() -> None:
    calls = [one_call("r0", sequence=i, tags={"agent": a}) for i, a in enumerate("ABBA")]
    twice = [one_call("r1", sequence=0), one_call("r1", sequence=2, choice=1), one_call("r1", sequence=2)]
    twice[2].call_id = "other choice"
    assert list(turns(calls).values()) == [1, 1, 2, 2]
    assert sorted(turns(twice).values()) == [1, 2, 2]
    record = make_record("r0", calls, rewards=[Reward(value=1.0, call_id=c.call_id) for c in calls[1:]])
    other = rewarded("r1", [0.0, 0.5])
    batch = assign([record, other], Recipe(name="t", credit="per_call", group_by=TURNS))
    groups = {c: a["group"][1] for row in batch.rows for c, a in row.metadata["calls"].items()}
    assert groups == {
        "r0-c1": "turn=B 1", "r0-c2": "turn=B 2", "r0-c3": "turn=A 2", "r1-c0": "turn=1", "r1-c1": "turn=2",
    }  # fmt: skip


def test_each_rollout_weighs_the_same_in_the_spread() -> None:
    # residuals ±1 of one rollout's two calls and ∓1 of the other's one: mean squares 1 and 1
    short = {"a": [(1.0, 2), (-1.0, 2)], "b": [(-1.0, 2)]}
    assert pooled_std(short) == pytest.approx(math.sqrt(2.0))
    # three rollouts, of which a location saw two: their mean is half as far from each as the true one
    few = {"a": [(0.5, 2)], "b": [(-0.5, 2)], "c": [(0.0, 3)]}
    assert pooled_std(few) == pytest.approx(math.sqrt((2 * 0.25 * (2 * 2) / (1 * 3)) / 2))
    assert pooled_std({"a": [(1.0, 2)]}) == pooled_std({}) == 0.0


# --------------------------------------------------------------------------------------- what always holds
def as_before(items: Sequence[CreditedCall], recipe: Recipe) -> dict[str, float]:
    """Advantages of one value a rollout: the group's mean, and its sample standard deviation."""
    groups: dict[str, dict[str, float]] = {}
    for one in items:
        key = "batch" if recipe.baseline == "batch" else str(one.rollout.group_id)
        groups.setdefault(key, {})[one.rollout.rollout_id] = one.credit
    out = {}
    for one in items:
        values = groups["batch" if recipe.baseline == "batch" else str(one.rollout.group_id)]
        known, n = list(values.values()), len(values)
        total = math.fsum(known)
        base = {"none": 0.0, "rloo": (total - one.credit) / max(n - 1, 1)}.get(recipe.baseline, mean(known))
        same = n < 2 or max(known) - min(known) <= 1e-12 * max(map(abs, known))
        if same and (recipe.baseline != "none" or recipe.scale == "std"):
            out[one.call_id] = 0.0
        else:
            out[one.call_id] = (one.credit - base) / (std(known) + EPSILON if recipe.scale == "std" else 1.0)
    return out


@PATIENT
@given(SINGLE, BUILT_IN, SCALE, st.sampled_from([["group"], TURNS]))
def test_one_value_a_rollout_gives_the_plain_numbers_bit_for_bit(rollouts, baseline, scale, group_by):
    recipe = Recipe(name="t", baseline=baseline, scale=scale, group_by=group_by)
    items = credited([[value] * n for value, n, _ in rollouts], [f"g{g}" for _, _, g in rollouts])
    got = {call: one.value for call, one in advantages(items, recipe).calls.items()}
    assert got == as_before(items, recipe)


@PATIENT
@given(worlds(), BUILT_IN, SCALE, st.sampled_from(["broadcast", "last"]))
def test_rules_that_broadcast_have_no_use_for_turns(records, baseline, scale, rule):
    plain = Recipe(name="t", credit=rule, baseline=baseline, scale=scale)
    turned = Recipe(name="t", credit=rule, baseline=baseline, scale=scale, group_by=TURNS)
    assert rows_digest(assign(records, plain).rows) == rows_digest(assign(records, turned).rows)


@PATIENT
@given(PER_CALL, st.integers(2, 4), st.sampled_from(["group", "rloo", "batch"]), SCALE, GROUP_BY)
def test_rollouts_that_did_the_same_give_zero(rollouts, n, baseline, scale, group_by):
    values, got = found([rollouts[0]] * n, baseline=baseline, scale=scale, group_by=group_by)
    assert {v for own in values for v in own} == {0.0}
    assert group_counts(got) == (1, 1, 0)


COARSE = st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5]), min_size=1, max_size=3), min_size=2, max_size=5)


@PATIENT
@given(COARSE, st.sampled_from(["group", "rloo"]), SCALE, st.sampled_from([["group"], TURNS]))
def test_no_other_group_is_zero_and_those_that_are_are_counted(rollouts, baseline, scale, group_by):
    values, got = found(rollouts, baseline=baseline, scale=scale, group_by=group_by)
    zero = {v for own in values for v in own} == {0.0}
    assert zero == bool(got.zero_reasons[("group=g",)])
    shared = [[own[t] for own in rollouts if len(own) > t] for t in range(3)]
    differ = any(len(set(at)) > 1 for at in shared if len(at) > 1)
    if differ:  # somewhere two rollouts did otherwise at the same turn
        assert not zero
    elif all(own == rollouts[0] for own in rollouts):
        assert zero and got.counts()["groups_zero_std"] == 1


@PATIENT
@example([[0.0, 1.0], [0.0, 0.0], [0.0], [0.0], [0.0], [0.0]], "rloo", TURNS)
@given(PER_CALL, st.sampled_from(["group", "rloo", "batch"]), st.sampled_from([["group"], TURNS]))
def test_bounded_credits_have_bounded_advantages(rollouts, baseline, group_by):
    values, _ = found(rollouts, baseline=baseline, group_by=group_by)
    bound = math.sqrt(len(rollouts) * max(map(len, rollouts)))
    assert max(abs(v) for own in values for v in own) <= bound * (1 + 1e-9)


@PATIENT
@given(
    worlds(),
    st.sampled_from(["per_call", "discounted", "per_agent"]),
    BUILT_IN,
    SCALE,
    GROUP_BY,
    st.integers(),
)
def test_the_order_of_records_does_not_matter(records, rule, baseline, scale, group_by, seed):
    recipe = Recipe(name="t", credit=rule, gamma=0.9, baseline=baseline, scale=scale, group_by=group_by)
    shuffled = list(records)
    Random(seed).shuffle(shuffled)
    assert rows_digest(assign(records, recipe).rows) == rows_digest(assign(shuffled, recipe).rows)


def test_where_each_agent_has_one_value_agents_are_compared_not_their_turns() -> None:
    """Rewards of agents, in rollouts in which they make different numbers of calls."""
    records = []
    for i, (agents, won) in enumerate([("ABA", 1.0), ("AB", -1.0), ("BAAA", -1.0)]):
        calls = [one_call(f"r{i}", sequence=t, tags={"agent": a}) for t, a in enumerate(agents)]
        rewards = [Reward(value=won, agent="A"), Reward(value=-won, agent="B")]
        records.append(make_record(f"r{i}", calls, rewards=rewards, sample=i))
    batch = assign(records, Recipe(name="t", credit="per_agent", group_by=TURNS))
    account = {c: a for row in batch.rows for c, a in row.metadata["calls"].items()}
    assert {a["group"][1] for a in account.values()} == {"agent=A", "agent=B"}
    assert account["r2-c3"]["baseline"] == pytest.approx(-1 / 3) and not account["r2-c3"]["zero_reason"]
    assert account["r2-c0"]["baseline"] == pytest.approx(1 / 3)
