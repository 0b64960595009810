"""Rewards: which one counts, and that what is missing stays missing."""

from __future__ import annotations

import math

import pytest
from core.credit.builders import make_record, one_call

from agentlightning.credit import resolve
from agentlightning.credit.rewards import BY_AGENT
from agentlightning.credit.rules import RULES
from agentlightning.types import Recipe, Reward


def resolved(*rewards: Reward, calls=None):
    return resolve(make_record(calls=calls, rewards=list(rewards)))


def test_the_last_final_reward_wins():
    assert resolved(Reward(value=1.0), Reward(value=0.25)).final == 0.25


def test_last_means_last_in_the_order_of_the_store_whatever_clocks_say():
    in_2096 = Reward(value=1.0, time=4e9)
    assert resolved(in_2096, Reward(value=0.0, time=1.0)).final == 0.0
    assert resolved(Reward(value=0.0), in_2096, Reward(value=0.5, time=-1.0)).final == 0.5


def test_a_returned_reward_counts_wherever_it_stands():
    own = Reward(value=1.0, returned=True)
    found = resolved(own, Reward(value=0.0), Reward(value=0.5, name="style"))
    assert (found.final, found.by_name) == (1.0, {"reward": 1.0, "style": 0.5})
    assert resolved(Reward(value=0.0, call_id="r0-c0"), own, calls=[one_call()]).calls == {"r0-c0": 0.0}


def test_an_emitted_reward_counts_where_none_of_that_name_was_returned():
    assert resolved(Reward(value=0.25), Reward(value=1.0, name="style", returned=True)).final == 0.25


FORGED = [
    Reward(value=1.0, call_id="r0-c0", final=False),
    Reward(value=1.0, agent="solver", final=False),
    Reward(value=1.0, name="bonus"),
    Reward(value=1.0),
]
"""What a program may emit for itself, by the key of its attempt."""


@pytest.mark.parametrize("rule", sorted(RULES))
def test_no_rule_reads_what_an_agent_without_trust_emitted_beside_a_judge(rule):
    judged = Reward(value=0.0, name="score", returned=True)
    record = make_record(calls=[one_call()], rewards=[*FORGED, judged])
    record.rollout.config.trusted = False
    credits = RULES[rule](record, Recipe(name="grpo"))
    assert set(credits.values()) <= {0.0, None}
    found = resolve(record)
    assert (found.final, found.outcome, found.by_name, found.targeted) == (0.0, 0.0, {"score": 0.0}, [])
    assert found.missing == {BY_AGENT: 4}


def test_a_reward_of_the_judge_for_an_agent_alone_leaves_no_other():
    record = make_record(
        calls=[one_call()], rewards=[*FORGED, Reward(value=0.0, agent="critic", final=False, returned=True)]
    )
    record.rollout.config.trusted = False
    assert (resolve(record).final, resolve(record).agents) == (None, {"critic": 0.0})


def test_the_one_named_reward_is_trained_others_are_dimensions():
    found = resolved(Reward(value=1.0), Reward(value=7.0, name="style"))
    assert found.final == 1.0
    assert found.by_name == {"reward": 1.0, "style": 7.0}
    assert resolved(Reward(value=2.0, name="a"), Reward(value=3.0, name="b")).final == 3.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf"), (None, "none"), ("1", "not-a-number")],
)
def test_what_is_no_number_is_missing_with_a_reason_and_never_zero(value, reason):
    found = resolved(Reward(value=value))
    assert found.final is None
    assert found.reason == reason
    assert found.missing == {reason: 1}
    assert found.by_name == {}


def test_never_emitted():
    found = resolved()
    assert (found.final, found.reason, found.missing) == (None, "none", {})


def test_zero_is_a_reward():
    assert (resolved(Reward(value=0.0)).final, resolved(Reward(value=False)).final) == (0.0, 0.0)


def test_a_nan_is_the_last_word_and_does_not_fall_back():
    assert resolved(Reward(value=1.0), Reward(value=math.nan)).final is None


def test_rewards_of_calls_by_id_and_by_span():
    calls = [one_call(sequence=0, span_id="s"), one_call(sequence=1)]
    found = resolved(Reward(value=1.0, span_id="s"), Reward(value=2.0, call_id="r0-c1"), calls=calls)
    assert found.calls == {"r0-c0": 1.0, "r0-c1": 2.0}
    assert found.final is None


def test_a_span_reward_belongs_to_every_choice_of_the_request():
    calls = [one_call(span_id="s"), one_call(sequence=1, span_id="s")]
    assert resolved(Reward(value=1.0, span_id="s"), calls=calls).calls == {"r0-c0": 1.0, "r0-c1": 1.0}


def test_rewards_that_reach_nothing_are_counted():
    found = resolved(
        Reward(value=1.0, call_id="nowhere"), Reward(value=1.0, span_id="x"), Reward(value=1.0, final=False)
    )
    assert (found.final, found.calls) == (None, {})
    assert found.missing == {"unknown-call": 2, "unattached": 1}


def test_rewards_of_agents():
    found = resolved(Reward(value=1.0, agent="A"), Reward(value=math.nan, agent="B"))
    assert found.agents == {"A": 1.0, "B": None}
    assert found.final is None


def test_the_outcome_is_the_final_reward_else_the_mean_of_narrower_ones():
    call = one_call("r0")
    own = [Reward(value=0.5, call_id=call.call_id), Reward(value=1.0, agent="a")]
    assert resolve(make_record("r0", [call], reward=0.0, rewards=own)).outcome == 0.0
    assert resolve(make_record("r0", [call], rewards=own)).outcome == 0.75
    assert resolve(make_record("r0", [call], reward=math.nan, rewards=own)).outcome is None
    assert resolve(make_record("r0", [call])).outcome is None
