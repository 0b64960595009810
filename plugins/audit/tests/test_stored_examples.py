"""What is learned from, and what is left out, by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from core.credit.builders import make_call, make_record, one_call
from hypothesis import given, strategies as st

from agentlightning.types import Record, RolloutStatus
from agl_audit.stored.examples import Example, at_least, best_of, examples, pairs
from agl_audit.stored.learning import stored_recipe


def read(records: list[Record], policy: str = one_call().policy) -> tuple[list[Example], Counter[str]]:
    left_out: Counter[str] = Counter()
    return list(examples(records, stored_recipe("sft"), policy, left_out)), left_out


def group(*rewards: float, name: str = "g") -> list[Example]:
    return [Example(f"{name}{i}", name, i, reward, ()) for i, reward in enumerate(rewards)]


def names(found: list[Example]) -> list[str]:
    return [one.rollout_id for one in found]


def test_an_example_has_the_merged_rows_of_its_rollout_at_temperature_one() -> None:
    calls = [
        make_call("a", [1], [2, 3], 0, policy_version=7, temperature=0.5),
        make_call("b", [1, 2, 3, 4], [5], 1, policy_version=8, temperature=0.5),
    ]
    (one,), left_out = read([make_record("r0", calls, 0.25)])
    (row,) = one.rows
    assert (one.reward, one.group, one.tokens, list(row.token_ids)) == (0.25, "g", 3, [1, 2, 3, 4, 5])
    assert row.temperature == 1.0 and set(row.versions) == {-1}, "its weights are gone"
    (weighed,) = one.weigh(2.0, 0.5)
    assert list(weighed.advantages) == [0, 2, 2, 0, 2] and list(weighed.weights) == [0, 0.5, 0.5, 0, 0.5]
    assert not left_out


def test_each_rollout_that_gives_no_example_has_a_reason() -> None:
    no_ids = make_call("n", None, None, 0, rollout_id="r3")
    records = [
        make_record("r0", reward=1.0),
        make_record("r1", [one_call("r1")], reward=1.0, status=RolloutStatus.FAILED),
        make_record("r2", [one_call("r2")]),
        make_record("r3", [no_ids], reward=1.0),
        make_record("r4", [], reward=1.0),
        make_record("r5", [one_call("r5")], reward=1.0, mode="val"),
        make_record("r6", [one_call("r6", policy="other")], reward=1.0),
    ]
    found, left_out = read(records)
    assert names(found) == ["r0"]
    assert left_out == {
        "failed-rollout": 1, "no-reward": 1, "no-ids": 1, "no-call": 1, "not-training": 1, "other-policy": 1,
    }  # fmt: skip


def test_a_call_of_an_example_that_is_left_out_is_counted() -> None:
    calls = [one_call(), make_call("n", None, None, 1)]
    found, left_out = read([make_record("r0", calls, reward=1.0)])
    assert len(found) == 1 and left_out == {"calls/no-ids": 1}


def test_fine_tuning_takes_what_is_good_enough() -> None:
    left_out: Counter[str] = Counter()
    assert names(at_least(group(0.0, 1.0, 0.5), 0.5, left_out)) == ["g1", "g2"] and left_out.total() == 1
    assert len(at_least(group(0.0, 1.0), None, left_out)) == 2


def test_the_best_of_a_group_are_chosen_and_ties_choose_nothing() -> None:
    left_out: Counter[str] = Counter()
    found = [*group(0.0, 1.0, 0.5, 1.0), *group(1.0, 1.0, name="h"), *group(1.0, name="i")]
    assert names(best_of(found, 1, left_out)) == ["g1"]
    assert left_out == {"not-best": 3, "tie": 2, "group-of-one": 1}
    assert names(best_of(found, 3, Counter())) == ["g1", "g3", "g2"]


def test_pairs_are_of_one_group_and_use_a_rollout_once() -> None:
    left_out: Counter[str] = Counter()
    found = [*group(0.0, 1.0, 0.5, 1.0, 0.0), *group(1.0, 1.0, name="h"), *group(0.0, name="i")]
    made = pairs(found, left_out)
    # best first: g1 g3 g2 g0 g4; worst first: g4 g0 g2 g3 g1
    assert [names(list(pair)) for pair in made] == [["g1", "g4"], ["g3", "g0"]]
    assert left_out == {"tie": 1 + 2, "group-of-one": 1}


@given(st.lists(st.tuples(st.sampled_from("gh"), st.sampled_from([0.0, 0.5, 1.0])), max_size=12))
def test_every_rollout_is_used_or_counted(drawn: list[tuple[str, float]]) -> None:
    found = [Example(f"{i}", name, i, reward, ()) for i, (name, reward) in enumerate(drawn)]
    for best in (1, 2):
        left_out: Counter[str] = Counter()
        assert len(best_of(found, best, left_out)) + left_out.total() == len(found)
    left_out = Counter()
    made = pairs(found, left_out)
    assert 2 * len(made) + left_out.total() == len(found)
    assert all(a.reward > b.reward and a.group == b.group for a, b in made)
    used = [one.rollout_id for pair in made for one in pair]
    assert len(used) == len({*used})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "name the runs to learn from"),
        ({"runs": ["r"], "best": 0}, "at least 1 rollout"),
        ({"runs": ["r"], "beta": 0.0}, "above 0"),
        ({"runs": ["r"], "betta": 1.0}, "betta"),
        ({"runs": "r"}, "array"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: dict[str, object], words: str) -> None:
    from agentlightning.types import UsageError
    from agentlightning.types.sections import TrainingSection
    from agl_audit.stored.learning import StoredLearning

    with pytest.raises(UsageError, match=f"training.settings of 'dpo'.*{words}"):
        StoredLearning(stored_recipe("dpo"), TrainingSection(settings=settings), method="dpo")
    with pytest.raises(UsageError, match=r"training\.async_steps: 'dpo' makes no rollouts"):
        StoredLearning(stored_recipe("dpo"), TrainingSection(async_steps=1), method="dpo")
