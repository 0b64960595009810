"""What an evaluation makes of records."""

from __future__ import annotations

from core.credit.builders import make_record, one_call

from agentlightning.algorithms.evaluation.evaluate import failure_reasons, summarise, unread_rewards
from agentlightning.types import Reward, RolloutStatus


def test_a_rollout_whose_calls_alone_are_rewarded_counts_as_their_mean() -> None:
    calls = [one_call("r0", sequence=i) for i in range(2)]
    own = [Reward(value=v, call_id=c.call_id) for v, c in zip((0.0, 1.0), calls, strict=True)]
    found = summarise("before", [make_record("r0", calls, rewards=own), make_record("r1", reward=1.0)], 1.0)
    assert (found.rewards, found.failed, found.reward) == ([0.5, 1.0], 0, 0.75)


def test_no_reward_at_all_is_a_failure_and_named() -> None:
    record = make_record("r0")
    assert summarise("before", [record], 1.0).failed == 1
    assert failure_reasons([record]) == "1 × the agent returned and emitted no reward"


def test_a_misfit_is_of_rewards_that_were_emitted_and_are_not_read() -> None:
    final, bare = make_record("r0", reward=1.0), make_record("r1")
    failed = make_record("r2", reward=1.0, status=RolloutStatus.FAILED)
    assert unread_rewards([final, bare, failed], "per_call").startswith(
        "1 of 3 rollouts have rewards of the rollout only"
    )
    for rule in ("broadcast", "last", "discounted", "per_agent", "a plugin's"):
        assert unread_rewards([final, bare, failed], rule) == ""
