"""Hand-worked numbers for each baseline and scale."""

from __future__ import annotations

import math

import pytest
from core.credit.builders import make_record, one_call

from agentlightning.credit.baselines import advantages
from agentlightning.credit.groups import CreditedCall, group_key, std
from agentlightning.types import Recipe, Rollout

# Two groups: g holds 0, 1, 5 (mean 2, sample std sqrt(7)); h holds 2, 4 (mean 3, sample std sqrt(2)).
REWARDS = {"a": ("g", 0.0), "b": ("g", 1.0), "c": ("g", 5.0), "d": ("h", 2.0), "e": ("h", 4.0)}
RECORDS = {name: make_record(name, group=group) for name, (group, _) in REWARDS.items()}


def credited():
    return [
        CreditedCall.of(RECORDS[name].rollout, RECORDS[name].calls[0], value)
        for name, (_, value) in REWARDS.items()
    ]


def found(items=None, **fields):
    got = advantages(items if items is not None else credited(), Recipe(name="t", **fields))
    return {key.split("-")[0]: value.value for key, value in got.calls.items()}, got.counts()


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("group", [-2.0, -1.0, 3.0, -1.0, 1.0]),
        ("rloo", [-3.0, -1.5, 4.5, -2.0, 2.0]),
        ("batch", [-2.4, -1.4, 2.6, -0.4, 1.6]),
        ("none", [0.0, 1.0, 5.0, 2.0, 4.0]),
    ],
)
def test_baselines_without_scale(baseline, expected):
    got, _ = found(baseline=baseline, scale="none")
    assert list(got.values()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("baseline", "expected", "stds"),
    [
        ("group", [-2.0, -1.0, 3.0, -1.0, 1.0], [math.sqrt(7)] * 3 + [math.sqrt(2)] * 2),
        ("rloo", [-3.0, -1.5, 4.5, -2.0, 2.0], [math.sqrt(7)] * 3 + [math.sqrt(2)] * 2),
        # squares about 2.4: 5.76 + 1.96 + 6.76 + 0.16 + 2.56 = 17.2, over 4
        ("batch", [-2.4, -1.4, 2.6, -0.4, 1.6], [math.sqrt(4.3)] * 5),
        ("none", [0.0, 1.0, 5.0, 2.0, 4.0], [math.sqrt(7)] * 3 + [math.sqrt(2)] * 2),
    ],
)
def test_baselines_over_the_sample_standard_deviation(baseline, expected, stds):
    got, _ = found(baseline=baseline, scale="std")
    assert list(got.values()) == pytest.approx(
        [e / (s + 1e-6) for e, s in zip(expected, stds, strict=True)], abs=1e-12
    )


@pytest.mark.parametrize("baseline", ["group", "rloo", "batch"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_a_group_of_one_and_equal_values_give_zero_and_are_counted(baseline, scale):
    one, all_one = found(credited()[:1], baseline=baseline, scale=scale)
    assert (one, all_one["groups_of_one"], all_one["groups_zero_std"]) == ({"a": 0.0}, 1, 0)
    same = [c._replace(credit=0.1) for c in credited()[:3]]
    equal, all_equal = found(same, baseline=baseline, scale=scale)
    assert (set(equal.values()), all_equal["groups_of_one"], all_equal["groups_zero_std"]) == ({0.0}, 0, 1)


def test_none_compares_nothing_so_a_group_of_one_keeps_its_credit():
    assert found(credited()[2:3], baseline="none")[0] == {"c": 5.0}
    assert found(credited()[2:3], baseline="none", scale="std")[0] == {"c": 0.0}


def test_a_baseline_sees_one_value_per_rollout_not_one_per_call():
    # Rollout a made three calls with credit 0, b one with credit 3: the baseline is 1.5, not 0.75.
    a = make_record("a", [one_call("a", sequence=i) for i in range(3)])
    b = make_record("b")
    items = [CreditedCall.of(a.rollout, call, 0.0) for call in a.calls] + [
        CreditedCall.of(b.rollout, b.calls[0], 3.0)
    ]
    got = advantages(items, Recipe(name="t"))
    assert [v.value for v in got.calls.values()] == [-1.5, -1.5, -1.5, 1.5]


def test_the_value_of_a_rollout_is_the_mean_credit_of_its_calls():
    a, b = make_record("a", [one_call("a", sequence=i) for i in range(2)]), make_record("b")
    items = [CreditedCall.of(a.rollout, a.calls[0], 0.0), CreditedCall.of(a.rollout, a.calls[1], 4.0)]
    items.append(CreditedCall.of(b.rollout, b.calls[0], 6.0))
    # values: a = 2, b = 6. group: 4 for both; rloo: 6 for a's calls, 2 for b's
    group = advantages(items, Recipe(name="t")).calls.values()
    rloo = advantages(items, Recipe(name="t", baseline="rloo")).calls.values()
    assert [v.value for v in group] == [-4.0, 0.0, 2.0]
    assert [v.value for v in rloo] == [-6.0, -2.0, 4.0]


def test_means_of_equal_credits_have_no_spread_whatever_the_rounding():
    items = []
    for n in range(1, 40):
        record = make_record(f"r{n}", [one_call(f"r{n}", sequence=i) for i in range(n)])
        items += [CreditedCall.of(record.rollout, call, 0.1) for call in record.calls]
    got = advantages(items, Recipe(name="t", scale="std"))
    assert got.counts()["groups_zero_std"] == 1
    assert {v.value for v in got.calls.values()} == {0.0}


def test_values_that_differ_by_rounding_alone_are_equal():
    items = [c._replace(credit=v) for c, v in zip(credited(), [0.3, math.nextafter(0.3, 1.0)], strict=False)]
    got, all_got = found(items, scale="std")
    assert (got, all_got["groups_zero_std"]) == ({"a": 0.0, "b": 0.0}, 1)
    apart = [c._replace(credit=v) for c, v in zip(credited(), [0.3, 0.3 + 1e-9], strict=False)]
    assert found(apart)[1]["groups_zero_std"] == 0


def test_group_by_tags_makes_a_baseline_of_its_own_for_each_side():
    items = []
    for name, wolf, town in [("a", 1.0, 0.0), ("b", 0.0, 4.0)]:
        sides = [one_call(name, sequence=i, tags={"side": s}) for i, s in enumerate(("wolf", "town"))]
        record = make_record(name, sides)
        items += [
            CreditedCall.of(record.rollout, sides[0], wolf),
            CreditedCall.of(record.rollout, sides[1], town),
        ]
    got = advantages(items, Recipe(name="t", group_by=["group", "side"]))
    assert [v.value for v in got.calls.values()] == [0.5, -2.0, -0.5, 2.0]
    assert got.counts()["groups"] == 2


def test_group_keys():
    call = one_call(tags={"side": "wolf"}, policy="p")
    rollout = Rollout(rollout_id="r", group_id="g", task_id="t")
    names = ["group", "task", "batch", "policy", "side", "role"]
    assert group_key(CreditedCall.of(rollout, call, 0.0), names) == (
        "group=g",
        "task=t",
        "batch",
        "policy=p",
        "side=wolf",
        "no role",
    )
    assert group_key(CreditedCall.of(Rollout(rollout_id="r", task_id="t"), call, 0.0), ["group"]) == (
        "task=t",
    )
    assert group_key(CreditedCall.of(Rollout(rollout_id="r"), call, 0.0), ["group"]) == ("rollout=r",)


def test_scaling_does_not_depend_on_the_unit_of_reward():
    big = [c._replace(credit=1000 * c.credit) for c in credited()]
    small, large = found(scale="std")[0], found(big, scale="std")[0]
    assert list(small.values()) == pytest.approx(list(large.values()), rel=1e-5)


@pytest.mark.parametrize(
    "answer", [{}, {("group=g",): {}}, {("group=g",): {"a": math.nan, "b": 0.0, "c": 0.0}}]
)
def test_a_baseline_that_forgets_a_value_is_named(answer):
    with pytest.raises(ValueError, match="baseline 'mine'"):
        advantages(credited()[:3], Recipe(name="t", baseline="mine"), {"mine": lambda groups, recipe: answer})


def test_a_huge_reward_is_a_huge_deviation_not_an_overflow() -> None:
    assert std([1e200, 0.0]) == pytest.approx(1e200 / 2**0.5)
