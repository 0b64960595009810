"""With a critic a row is paid in time, and the sums of what it is paid are the returns that credit says."""

from __future__ import annotations

import pytest
from core.credit.builders import PATIENT, make_call, make_record, worlds
from hypothesis import given, strategies as st

from agentlightning.credit import assign
from agentlightning.credit.checks import check_credit_fields
from agentlightning.plugins.manager import build
from agentlightning.recipes import FIELDS, GRPO
from agentlightning.types import Batch, Recipe, Record, Reward, Row, Segment
from agl_verl import plugin
from agl_verl.ppo import PPO
from agl_verl.returns import CRITIC_REQUIRES, check_critic, token_rewards
from agl_verl.supported_fields import Refused, refuse

RULES = st.sampled_from(["broadcast", "last", "per_call", "returns", "per_agent"])
FUNCTIONS = build([plugin], discover=False).credit_functions


def credited(records: list[Record], recipe: Recipe, version: int | None = None) -> Batch:
    """The batch of a step, as a run with agl-verl makes it."""
    return assign(records, recipe, version=version, **FUNCTIONS)


def paid(row: Row) -> dict[int, float]:
    """Position → reward, where there is one."""
    return {t: reward for t, reward in enumerate(token_rewards(row)) if reward}


def turns(*starts: int, rewards: list[Reward]) -> list[Row]:
    """The rows of a rollout of one line of calls, two tokens each, which begin at ``starts``; 1.0 for it."""
    line = list(range(100))
    calls = [make_call(f"c{n}", line[:at], line[at : at + 2], n) for n, at in enumerate(starts)]
    return credited([make_record(calls=calls, reward=1.0, rewards=rewards)], PPO()).rows


@PATIENT
@given(worlds(), RULES, st.booleans(), st.sampled_from([0.0, 0.9, 1.0]))
def test_from_each_token_on_a_row_is_paid_its_calls_return(records, rule, merge, gamma):
    batch = credited(records, PPO(credit=rule, merge=merge, gamma=gamma), 2)
    for row in batch.rows:
        earned = token_rewards(row)
        assert len(earned) == len(row.token_ids)
        assert not any(reward for reward, trained in zip(earned, row.mask, strict=True) if not trained)
        for segment in (one for one in row.segments if one.trained):
            for t in (segment.start, segment.end - 1):
                assert sum(earned[t:]) == pytest.approx(segment.advantage, abs=1e-9)


@PATIENT
@given(worlds(), RULES, st.booleans())
def test_time_is_discounted_once_and_not_by_the_rule(records, rule, merge):
    found = [credited(records, PPO(credit=rule, merge=merge, gamma=g), 2).rows for g in (0.5, 1.0)]
    assert found[0] == found[1]


def test_calls_of_one_line_are_paid_what_they_emitted_and_the_last_the_rollouts():
    (row,) = turns(3, 8, 12, rewards=[Reward(value=0.25, call_id="c1"), Reward(value=-0.5, call_id="c2")])
    assert paid(row) == {9: 0.25, 13: 0.5}  # c0 emitted none; c2's own and the rollout's
    assert row.advantages[3] == row.advantages[8] == 0.75 and row.advantages[12] == 0.5


def test_where_a_row_ends_early_it_is_paid_what_came_after_it():
    calls = [
        make_call("a", [1], [2, 3], 0),
        make_call("x", [9], [8, 7], 1),  # another agent's line
        make_call("b", [1, 2, 3, 4], [5, 6], 2),
        make_call("y", [9, 8, 7, 6], [5, 4], 3),
    ]
    emitted = [Reward(value=0.5, call_id="y"), Reward(value=0.25, call_id="b")]
    first, second = credited([make_record(calls=calls, reward=1.0, rewards=emitted)], PPO()).rows
    assert first.token_ids[:1] == [1] and paid(first) == {5: 1.75}  # b's own, y's and the rollout's
    assert paid(second) == {2: 0.25, 5: 1.5}  # b's lies between x and y
    single = credited([make_record(calls=calls, reward=1.0, rewards=emitted)], PPO(merge=False)).rows
    assert [sum(token_rewards(row)) for row in single] == [1.75, 1.75, 1.75, 1.5]


def test_shared_context_is_not_paid_again():
    segments = [
        Segment(call_id="a", start=1, end=3, advantage=9.0, trained=False),
        Segment(call_id="b", start=4, end=6, advantage=2.0),
    ]
    fields = {"mask": [0, 0, 0, 0, 1, 1], "advantages": [0.0] * 4 + [2.0] * 2}
    zeros = [0.0] * 6
    row = Row(row_id="r/0", rollout_id="r", policy="p", token_ids=[1, 2, 3, 4, 5, 6], logprobs=zeros,
              weights=zeros, versions=[0] * 6, segments=segments, **fields)  # fmt: skip
    assert paid(row) == {5: 2.0}


def test_a_missing_reward_is_no_zero():
    batch = credited([make_record(calls=[make_call("a", [1], [2])])], PPO())
    assert batch.rows == [] and batch.ledgers[0].left_out == {"no-reward": 1}


def test_equal_returns_and_single_rollouts_are_trained():
    batch = credited([make_record(calls=[make_call("a", [1], [2, 3])], reward=0.0)], PPO())
    assert [row.mask for row in batch.rows] == [[0, 1, 1]] and batch.ledgers[0].trained == 1


@pytest.mark.parametrize(("given", "words"), [
    ({"baseline": "group"}, "recipe.baseline = 'group' with a critic: there is no comp.*set it to 'none'"),
    ({"group_by": ["side"]}, "recipe.group_by"), ({"scale": "std"}, "recipe.scale.*whitened"),
    ({"filter_zero_std_groups": True}, "recipe.filter_zero_std_groups"),
    ({"ratio_level": "sequence"}, "recipe.ratio_level"),
    ({"step_weight": 1.0}, r"recipe.step_weight = 1\.0 with a critic: there is no comparison"),
    ({"credit": "discounted", "gamma": 0.9},
     r"recipe.credit = 'discounted' with a critic: time is discounted once, by GAE.*; write credit: returns"),
    ({"lam": 1.1}, r"recipe.lam = 1.1: must lie in \[0, 1\]"),
])  # fmt: skip
def test_what_a_critic_would_ignore_is_refused(given: dict[str, object], words: str):
    with pytest.raises(Refused, match=words):
        refuse(PPO(**given))


def test_ppo_has_a_critic_and_no_groups():
    recipe = PPO()
    assert recipe.critic and recipe.uses() == {
        "group_size": 1, "credit": "returns", "lam": 0.95, "baseline": "none", "loss_aggregation": "token",
        "critic": True,
    }  # fmt: skip
    assert PPO(lam=1.0, clip_low=0.1).uses().keys() >= {"clip_low"} and PPO().gamma == 1.0
    check_credit_fields(PPO(gamma=0.9), **FUNCTIONS)
    assert PPO(credit="per_call").group_by == ["group"] and not PPO(credit="per_call").uses().keys() & {
        "group_by"
    }


@PATIENT
@given(worlds(), st.sampled_from([0.0, 0.9, 1.0]))
def test_without_a_critic_to_discount_the_rule_does(records, gamma):
    plain = {"baseline": "none", "scale": "none", "gamma": gamma}
    found = [
        credited(records, GRPO(credit=rule, group_by=["group"], **plain))
        for rule in ("returns", "discounted")
    ]
    assert found[0].rows == found[1].rows


def test_lambda_needs_a_critic_and_grpo_with_one_is_no_recipe():
    with pytest.raises(ValueError, match=r"recipe.lam = 0.9: .* needs a critic"):
        check_critic(GRPO(lam=0.9))
    with pytest.raises(ValueError, match=r"recipe\.baseline"):
        check_critic(GRPO(critic=True))
    check_critic(GRPO())
    check_critic(PPO(kl=0.1, entropy=0.01, loss_aggregation="rollout", epochs=4, minibatches=8, merge=False))


def test_what_is_refused_are_fields_with_a_value_that_is_not():
    assert set(CRITIC_REQUIRES) <= set(FIELDS)
    defaults = Recipe(name="t")
    assert {name for name, (value, _) in CRITIC_REQUIRES.items() if getattr(defaults, name) != value} == {
        "baseline"
    }
