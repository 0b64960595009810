"""Hand-worked numbers for each credit rule."""

from __future__ import annotations

import math

import pytest
from core.credit.builders import make_call, make_record, one_call

from agentlightning import semconv
from agentlightning.credit import assign
from agentlightning.credit.rules import RULES
from agentlightning.types import Recipe, Reward


def calls(n=3):
    return [one_call(sequence=i) for i in range(n)]


def own(index, value):
    return Reward(value=value, call_id=f"r0-c{index}")


def run(rule, record, **fields):
    found = RULES[rule](record, Recipe(name="t", credit=rule, **fields))
    return {int(key.rsplit("c", 1)[1]): value for key, value in found.items()}


def test_broadcast():
    assert run("broadcast", make_record(calls=calls(), reward=0.5)) == {0: 0.5, 1: 0.5, 2: 0.5}
    assert run("broadcast", make_record(calls=calls())) == {0: None, 1: None, 2: None}


def test_last_trains_the_last_call_only():
    assert run("last", make_record(calls=calls(), reward=0.5)) == {2: 0.5}
    assert run("last", make_record(calls=calls())) == {2: None}


def test_last_means_the_last_trainable_request_with_all_its_choices():
    made = [*calls(2), one_call(sequence=2, masked="not-selected")]
    twin = one_call(sequence=1, choice=1)
    twin.call_id = "r0-c9"
    assert run("last", make_record(calls=[*made, twin], reward=1.0)) == {1: 1.0, 9: 1.0}


def test_per_call_keeps_what_is_missing_missing():
    record = make_record(calls=calls(), reward=9.0, rewards=[own(0, 1.0), own(2, math.nan)])
    assert run("per_call", record) == {0: 1.0, 1: None, 2: None}


def test_discounted_from_the_final_reward_alone():
    record = make_record(calls=calls(), reward=8.0)
    assert run("discounted", record, gamma=0.5) == {2: 8.0, 1: 4.0, 0: 2.0}
    assert run("discounted", record, gamma=1.0) == {2: 8.0, 1: 8.0, 0: 8.0}
    assert run("discounted", record, gamma=0.0) == {2: 8.0, 1: 0.0, 0: 0.0}


def test_discounted_with_own_rewards():
    # G2 = 1 + 8 = 9;  G1 = 0 (no term) + 4.5 = 4.5;  G0 = 3 + 2.25 = 5.25
    record = make_record(calls=calls(), reward=8.0, rewards=[own(0, 3.0), own(2, 1.0)])
    assert run("discounted", record, gamma=0.5) == {2: 9.0, 1: 4.5, 0: 5.25}


def test_discounted_without_a_final_reward_is_the_sum_of_own_rewards():
    record = make_record(calls=calls(), rewards=[own(1, 4.0)])
    assert run("discounted", record, gamma=0.5) == {2: 0.0, 1: 4.0, 0: 2.0}


def test_discounted_missing_values_spread_to_every_return_they_enter():
    nothing = {0: None, 1: None, 2: None}
    assert run("discounted", make_record(calls=calls())) == nothing
    assert run("discounted", make_record(calls=calls(), reward=math.nan, rewards=[own(0, 1.0)])) == nothing
    record = make_record(calls=calls(), reward=1.0, rewards=[own(1, math.nan)])
    assert run("discounted", record) == {2: 1.0, 1: None, 0: None}


def test_discounted_over_parallel_choices_takes_their_mean():
    twin = one_call(sequence=1, choice=1)
    twin.call_id = "r0-c9"
    record = make_record(calls=[*calls(2), twin], reward=1.0, rewards=[own(9, 2.0)])
    # the last request has returns 1 and 3, so the call before it sees 2
    assert run("discounted", record, gamma=0.5) == {1: 1.0, 9: 3.0, 0: 1.0}


def test_per_agent():
    made = [one_call(sequence=i, tags={"agent": a} if a else {}) for i, a in enumerate(["A", "B", "C", ""])]
    rewards = [Reward(value=1.0, agent="A"), Reward(value=math.nan, agent="B")]
    assert run("per_agent", make_record(calls=made, reward=0.25, rewards=rewards)) == {
        0: 1.0,
        1: None,
        2: 0.25,
        3: 0.25,
    }
    assert run("per_agent", make_record(calls=made, rewards=rewards)) == {0: 1.0, 1: None, 2: None, 3: None}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_no_rule_makes_a_number_of_nothing(rule):
    assert set(run(rule, make_record(calls=calls())).values()) == {None}
    assert run(rule, make_record(calls=[], reward=1.0)) == {}


@pytest.mark.parametrize(
    ("rule", "final", "credits"),
    [
        ("per_call", None, {"a": 1.0, "b": -1.0}),
        ("per_call", 5.0, {"a": 1.0, "b": -1.0}),
        ("discounted", None, {"a": 0.5, "b": -1.0}),
        ("discounted", 5.0, {"a": 3.0, "b": 4.0}),
        ("broadcast", None, {}),
        ("broadcast", 5.0, {"a": 5.0, "b": 5.0}),
        ("last", None, {}),
        ("last", 5.0, {"b": 5.0}),
        ("per_agent", None, {}),
        ("per_agent", 5.0, {"a": 5.0, "b": 5.0}),
    ],
)
def test_rewards_of_transitions_that_an_agent_handed_in(
    rule: str, final: float | None, credits: dict[str, float]
) -> None:
    """``a`` refines a captured call, ``b`` is the agent's own, ``c`` was captured and is replaced."""
    own = make_call("b", [7], [8], 9, api="supplied", prompt_tokens=None, completion_tokens=None)
    calls = [make_call("a", [1], [2], 0), make_call("c", [3], [4], 1), own]
    rewards = [
        Reward(value=1.0, call_id="a"),
        Reward(value=-1.0, call_id="b"),
        Reward(value=3.0, call_id="c"),
    ]
    record = make_record(calls=calls, reward=final, rewards=rewards)
    assert record.attempt is not None
    record.attempt.metadata = {semconv.SUPPLIED: ["a", "b"]}
    out: dict[str, str] = {}
    batch = assign([record], Recipe(name="t", credit=rule, gamma=0.5, baseline="none"), out=out)
    assert {s.call_id: s.advantage for row in batch.rows for s in row.segments} == credits
    assert out["c"] == "replaced-by-agent"
    assert all(out[name] in ("no-reward", "not-last") for name in {"a", "b"} - set(credits))
