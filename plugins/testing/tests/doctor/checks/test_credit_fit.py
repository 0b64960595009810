"""The doctor says when rewards, credit rule and grouping do not fit each other, and what to set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from agl_testing.doctor.checks.reward import judge_reward
from agl_testing.doctor.report import Check
from core.credit.builders import make_record, one_call

from agentlightning.credit import assign
from agentlightning.recipes import GRPO
from agentlightning.types import Record, Reward

OPPOSITE = [(1.0, -1.0), (-1.0, 1.0)]


def rollouts(rewards: Sequence[Sequence[float]], tasks: int = 4, **fields: Any) -> list[Record]:
    """Groups in which calls have these rewards of their own."""
    found = []
    for task in range(tasks):
        for i, own in enumerate(rewards):
            name = f"g{task}r{i}"
            calls = [one_call(name, sequence=t, tags={"agent": "a"}) for t in range(len(own))]
            given = [Reward(value=v, call_id=c.call_id) for v, c in zip(own, calls, strict=True)]
            found.append(make_record(name, calls, rewards=given, group=f"g{task}", sample=i, **fields))
    return found


def judged(records: list[Record], **fields: Any) -> Check:
    recipe = GRPO(group_size=4, **fields)
    return judge_reward(records, assign(records, recipe), recipe).check


def test_credits_of_calls_against_the_mean_of_rollouts_are_named_with_the_mend() -> None:
    check = judged(rollouts(OPPOSITE), credit="per_call", group_by=["group"])
    assert check.status == "warn" and "different credits" in check.title
    assert "baseline group, scale std, group_by [group]" in check.title
    assert "Set training.recipe.group_by to [group, turn]; left out" in check.advice[0]
    side = judged(rollouts(OPPOSITE), credit="per_call", group_by=["group", "agent"])
    assert "[group, agent, turn]" in side.advice[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"credit": "per_call"},
        {"credit": "per_call", "scale": "none"},
        {"credit": "per_call", "group_by": ["group"], "baseline": "none", "scale": "none"},
    ],
)
def test_what_fits_is_well(fields: dict[str, Any]) -> None:
    check = judged(rollouts(OPPOSITE), **fields)
    assert check.status == "ok" and check.data["groups_with_spread"] == 1.0
    assert not any("group_by" in line for line in check.advice)


def test_rollouts_of_equal_rewards_teach_where_their_calls_differ_and_only_there() -> None:
    assert judged(rollouts(OPPOSITE), credit="per_call").status == "ok"
    same = judged(rollouts([(1.0, -1.0)] * 4), credit="per_call")
    assert same.status == "fail" and "training would be pointless: all 16 rewards are 0" in same.title


@pytest.mark.parametrize(
    ("rule", "records", "said"),
    [
        ("broadcast", rollouts(OPPOSITE), "8 of 8 rollouts have rewards of the calls only"),
        ("last", rollouts(OPPOSITE), "recipe.credit = 'per_call' or 'discounted' does"),
        (
            "per_call",
            [make_record(f"r{i}", reward=float(i)) for i in range(4)],
            "rewards of the rollout only",
        ),
        (
            "broadcast",
            [make_record(f"r{i}", rewards=[Reward(value=1.0, agent="a")]) for i in range(4)],
            "of the agents only, which the rule 'broadcast' does not read; recipe.credit = 'per_agent'",
        ),
    ],
)
def test_a_rule_that_reads_other_rewards_than_are_emitted_is_named(
    rule: str, records: list[Record], said: str
) -> None:
    check = judged(records, credit=rule)
    assert check.status == "fail" and said in check.title
    assert not any("agent.select" in line for line in check.advice)


def test_rewards_that_a_rule_reads_are_no_misfit_where_calls_are_left_out() -> None:
    records = rollouts(OPPOSITE)
    records[0].rewards = records[0].rewards[:1]  # a call without a reward of its own
    assert judged(records, credit="per_call").status == "ok"


def test_turns_that_nobody_else_has_are_said() -> None:
    uneven = rollouts([(1.0,), (0.0, 0.5, 0.25, 0.125, 0.75)])
    check = judged(uneven, credit="per_call")
    assert check.status == "warn" and "no other rollout of their task has" in check.title
    assert "group_size higher" in check.advice[0]


def test_credits_that_are_scaled_and_compared_with_nothing_are_named() -> None:
    records = [make_record(f"r{i}", reward=1.0 + 1e-4 * i, sample=i) for i in range(4)]
    check = judged(records, baseline="none", scale="std")
    assert check.status == "warn" and "huge advantage" in check.title
    assert "Set training.recipe.scale to none" in check.advice[0]
    largest = max(
        abs(s.advantage) for row in assign(records, GRPO(baseline="none")).rows for s in row.segments
    )
    assert largest > 1000  # what it warns of is so
    assert judged(records, baseline="none", scale="none").status == "ok"
