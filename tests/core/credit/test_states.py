"""GiGPO's two levels, worked out by hand: rollouts of a group, and calls of the group in one state."""

from __future__ import annotations

import math

import pytest
from core.credit.builders import make_call, make_record, walk

from agentlightning.credit import assign
from agentlightning.recipes import get
from agentlightning.types import Record, Reward

E = 1e-6


def values(records: list[Record], **fields: object) -> tuple[dict[str, float], dict[str, float]]:
    batch = assign(records, get("gigpo", **fields))
    segments = {s.call_id: s.advantage for row in batch.rows for s in row.segments if s.trained}
    return segments, batch.metrics


def test_the_advantage_is_that_of_the_episode_plus_that_of_the_state():
    # a: states s, t, won.  b: states s, u, lost.  gamma 0.5: returns of s are 0.5 (a) and 0 (b).
    found, metrics = values([walk("a", ["s", "t"], 1.0), walk("b", ["s", "u"], 0.0)], gamma=0.5)
    episode = 0.5 / (math.sqrt(0.5) + E)  # 1 - 1/2 over the sample deviation of (1, 0)
    step = 0.25 / (math.sqrt(0.125) + E)  # 1/2 - 1/4 over that of (1/2, 0)
    assert found == pytest.approx(
        {"a-c0": episode + step, "a-c1": episode, "b-c0": -episode - step, "b-c1": -episode}, abs=1e-12
    )
    assert metrics["states_of_one"] == 2 and "steps_missing" not in metrics


def test_weight_and_scale_are_the_recipes():
    records = [walk("a", ["s", "t"], 1.0), walk("b", ["s", "u"], 0.0)]
    found, _ = values(records, gamma=0.5, step_weight=2.0, scale="none")
    assert found == pytest.approx({"a-c0": 0.5 + 0.5, "a-c1": 0.5, "b-c0": -1.0, "b-c1": -0.5})


def test_a_state_visited_twice_counts_twice_and_tells_turns_apart_where_outcomes_are_equal():
    # Both rollouts win: the episode says nothing. a is in s twice, b once: returns 1/4, 1 and 1/2, 1.
    found, metrics = values([walk("a", ["s", "t", "s"], 1.0), walk("b", ["s", "t"], 1.0)], gamma=0.5,
                            scale="none")  # fmt: skip
    s, t = (0.25 + 1.0 + 0.5) / 3, (0.5 + 1.0) / 2
    assert found == pytest.approx(
        {"a-c0": 0.25 - s, "a-c1": 0.5 - t, "a-c2": 1.0 - s, "b-c0": 0.5 - s, "b-c1": 1.0 - t}
    )
    assert metrics["groups_zero_std"] == 1 and metrics["tokens_zero_advantage"] == 0


def test_rewards_of_calls_are_part_of_the_return():
    paid = [Reward(value=1.0, call_id="a-c0")]
    found, _ = values([walk("a", ["s", "t"], 0.0, rewards=paid), walk("b", ["s", "u"], 0.0)], gamma=0.5,
                      scale="none")  # fmt: skip
    assert found == pytest.approx({"a-c0": 0.5, "a-c1": 0.0, "b-c0": -0.5, "b-c1": 0.0})


def test_without_a_tag_the_state_is_the_prompt_and_groups_do_not_mix():
    def plain(name: str, reward: float, group: str) -> Record:
        call = make_call(f"{name}-c0", [1, 7], [2], 0, rollout_id=name)
        return make_record(name, [call], reward, group=group)

    records = [plain("a", 1.0, "g"), plain("b", 0.0, "g"), plain("c", 1.0, "h"), plain("d", 1.0, "h")]
    found, metrics = values(records, scale="none")
    assert found == pytest.approx({"a-c0": 1.0, "b-c0": -1.0, "c-c0": 0.0, "d-c0": 0.0})
    assert "states_of_one" not in metrics


def test_a_return_with_a_reward_that_is_no_number_is_missing_and_counted():
    broken = [Reward(value=math.nan, call_id="a-c1")]
    found, metrics = values([walk("a", ["s", "t"], 1.0, rewards=broken), walk("b", ["s", "t"], 0.0)],
                            scale="none")  # fmt: skip
    assert found == pytest.approx({"a-c0": 0.5, "a-c1": 0.5, "b-c0": -0.5, "b-c1": -0.5})
    assert metrics["steps_missing"] == 2 and metrics["states_of_one"] == 2


def test_a_negative_weight_of_states_is_refused():
    with pytest.raises(ValueError, match="step_weight = -1"):
        assign([], get("gigpo", step_weight=-1.0))
