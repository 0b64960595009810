"""The forest: what merges, what does not, and the path of every call."""

from __future__ import annotations

import msgspec
import pytest
from core.credit.builders import PATIENT, make_call, worlds
from hypothesis import given, strategies as st

from agentlightning.credit import build_forest
from agentlightning.credit.forest import temperature_of


def shape(calls, **options):
    """Paths as (shared ids, own ids)."""
    forest = build_forest(calls, **options)
    return [("".join(c.call_id for c in p.shared), "".join(c.call_id for c in p.own)) for p in forest.paths]


def test_turns_of_one_agent_become_one_row():
    calls = [
        make_call("a", [1], [2], 0),
        make_call("b", [1, 2, 3], [4], 1),
        make_call("c", [1, 2, 3, 4, 5], [6], 2),
    ]
    assert shape(calls) == [("", "abc")]
    assert shape(calls[::-1]) == [("", "abc")]
    assert shape(calls, merge=False) == [("", "a"), ("", "b"), ("", "c")]


def test_agents_that_take_turns_each_grow_their_own_line():
    calls = [
        make_call("a", [1], [2], 0),
        make_call("x", [9], [8], 1),
        make_call("b", [1, 2, 3], [4], 2),
        make_call("y", [9, 8, 7], [6], 3),
    ]
    assert shape(calls) == [("", "ab"), ("", "xy")]


def test_a_branch_starts_a_new_row_with_the_shared_part_as_context():
    calls = [
        make_call("a", [1], [2], 0),
        make_call("b", [1, 2, 3], [4], 1),
        make_call("c", [1, 2, 5], [6], 2),
        make_call("d", [1, 2, 5, 6, 7], [8], 3),
    ]
    forest = build_forest(calls)
    assert shape(calls) == [("", "ab"), ("a", "cd")]
    assert forest.merge_failures == {"branch": 1}


def test_identical_prompts_never_merge():
    samples = [make_call(c, [1], [2], 0, choice=i) for i, c in enumerate("ab")]
    assert shape(samples) == [("", "a"), ("", "b")]
    assert build_forest(samples).merge_failures == {}
    again = [make_call("a", [1], [2], 0), make_call("b", [1], [2], 1)]
    assert shape(again) == [("", "a"), ("", "b")]


def test_parallel_samples_after_a_turn_branch():
    calls = [
        make_call("a", [1], [2], 0),
        *(make_call(c, [1, 2, 3], [4], 1, choice=i) for i, c in enumerate("bc")),
    ]
    assert shape(calls) == [("", "ab"), ("a", "c")]
    assert build_forest(calls).merge_failures == {"branch": 1}


def test_choices_of_one_request_do_not_extend_each_other():
    calls = [make_call("a", [], [2], 0), make_call("b", [2, 3], [4], 0, choice=1)]
    assert shape(calls) == [("", "a"), ("", "b")]


def test_the_longest_earlier_call_wins_whoever_came_between():
    calls = [
        make_call("a", [1], [2], 0),
        make_call("b", [1, 2, 3], [4], 1),
        make_call("x", [9], [9], 2),
        make_call("c", [1, 2, 3, 4, 5], [6], 3),
    ]
    assert shape(calls) == [("", "abc"), ("", "x")]


def test_a_prefix_must_be_strict_and_earlier():
    equal = [make_call("a", [1], [2], 0), make_call("b", [1, 2], [3], 1)]
    assert shape(equal) == [("", "a"), ("", "b")]
    backwards = [make_call("b", [1, 2, 3], [3], 0), make_call("a", [1], [2], 1)]
    assert shape(backwards) == [("", "b"), ("", "a")]


def test_adversarial_prefixes():
    one_token = [
        make_call("a", [], [1], 0),
        make_call("b", [1, 1], [1], 1),
        make_call("c", [1, 1, 1, 1], [1], 2),
    ]
    assert shape(one_token) == [("", "abc")]
    # Same length and same last token as an earlier call, but another head.
    decoy = [make_call("a", [1, 2], [3], 0), make_call("b", [7, 2, 3, 4], [5], 1)]
    assert shape(decoy) == [("", "a"), ("", "b")]


def test_policies_and_temperatures_never_merge():
    first = make_call("a", [1], [2], 0)
    assert shape([first, make_call("b", [1, 2, 3], [4], 1, policy="other")]) == [("", "a"), ("", "b")]
    assert shape([first, make_call("b", [1, 2, 3], [4], 1, temperature=0.5)]) == [("", "a"), ("", "b")]


def test_a_call_at_another_temperature_is_context_for_the_next():
    calls = [
        make_call("a", [1], [2], 0),
        make_call("b", [1, 2, 3], [4], 1, temperature=0.5),
        make_call("c", [1, 2, 3, 4, 5], [6], 2),
    ]
    assert shape(calls) == [("", "ac"), ("", "b")]


def test_a_call_that_states_no_temperature_was_sampled_at_the_recipes():
    call = make_call("a", [1], [2], sampling={})
    assert temperature_of(call, 0.7) == 0.7
    assert shape([call, make_call("b", [1, 2, 3], [4], 1, temperature=0.7)], temperature=0.7) == [("", "ab")]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="'a' has no token ids"):
        build_forest([make_call("a", [1], [])])
    with pytest.raises(ValueError, match="one rollout"):
        build_forest([make_call("a", [1], [2]), make_call("b", [1], [2], rollout_id="r1")])


def brute_parent(call, earlier):
    fitting = [
        e
        for e in earlier
        if e.sequence < call.sequence
        and (e.policy, e.sampling) == (call.policy, call.sampling)
        and len(e.prompt_ids + e.response_ids) < len(call.prompt_ids)
        and call.prompt_ids[: len(e.prompt_ids + e.response_ids)] == e.prompt_ids + e.response_ids
    ]
    return max((len(e.prompt_ids + e.response_ids) for e in fitting), default=None)


@PATIENT
@given(worlds(vocabulary=2, clean=True))
def test_parents_are_those_of_a_brute_force_search(records):
    for record in records:
        forest = build_forest(record.calls)
        assert sorted(c.call_id for p in forest.paths for c in p.own) == sorted(
            c.call_id for c in record.calls
        )
        for path in forest.paths:
            line = [*path.shared, *path.own]
            for i, call in enumerate(line):
                above = line[i - 1] if i else None
                length = len(above.prompt_ids + above.response_ids) if above else None
                assert length == brute_parent(call, record.calls)


def test_two_hundred_long_calls_are_no_quadratic_affair():
    # 200 turns of two agents that grow to 10,000 tokens each: 2 million prompt tokens to compare.
    line: dict[int, list[int]] = {0: [0], 1: [1]}
    calls = []
    for i in range(200):
        prompt = line[i % 2] + [7] * 60
        calls.append(make_call(f"c{i:03}", prompt, [i % 5] * 40, i))
        line[i % 2] = prompt + [i % 5] * 40
    assert len(calls[-1].prompt_ids) + 40 > 10_000
    assert [len(p.own) for p in build_forest(calls).paths] == [100, 100]


def fan_out(order):
    """One turn, then three strands at once that go on from it, each of two turns, arriving in ``order``."""
    start = make_call("start", [1], [2], 0)
    turns = {
        k: iter([make_call(f"{k}1", [1, 2, k], [7]), make_call(f"{k}2", [1, 2, k, 7, 8], [9])])
        for k in (3, 4, 5)
    }
    later = [next(turns[k]) for k in order]
    return [start, *(msgspec.structs.replace(call, sequence=1 + i) for i, call in enumerate(later))]


@given(st.permutations([3, 3, 4, 4, 5, 5]))
def test_which_strand_continues_does_not_depend_on_who_came_first(order):
    assert sorted(shape(fan_out(order))) == sorted(shape(fan_out([3, 3, 4, 4, 5, 5])))


def test_of_calls_that_extend_the_same_one_the_smallest_ids_continue_its_row():
    """As docs/credit.md says: not the one that came first."""
    calls = [
        make_call("a", [1], [2], 0),
        make_call("b", [1, 2, 9], [4], 1),
        make_call("c", [1, 2, 3], [8], 2),
    ]
    assert sorted(shape(calls)) == [("", "ac"), ("a", "b")]
    same_prompt = [calls[0], make_call("b", [1, 2, 3], [9], 1), make_call("c", [1, 2, 3], [8], 2)]
    assert sorted(shape(same_prompt)) == [("", "ac"), ("a", "b")]
