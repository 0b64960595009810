"""What an evaluation makes of records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from core.credit.builders import make_record, one_call

from agentlightning.algorithms.evaluate import (
    Counting,
    check_clusters,
    failure_reasons,
    summarise,
    unread_rewards,
)
from agentlightning.types import Record, Reward, RolloutStatus
from agentlightning.types.base import ConfigError
from agentlightning.types.failure import read_failure_table


def test_a_rollout_whose_calls_alone_are_rewarded_counts_as_their_mean() -> None:
    calls = [one_call("r0", sequence=i) for i in range(2)]
    own = [Reward(value=v, call_id=c.call_id) for v, c in zip((0.0, 1.0), calls, strict=True)]
    found = summarise(
        "before",
        [make_record("r0", calls, rewards=own, group=None), make_record("r1", reward=1.0, group=None)],
        1.0,
    )
    assert (found.rewards, found.failed, found.reward) == ([0.5, 1.0], 0, 0.75)
    assert found.failures_text() == "" and found.interval == "Student's t"


def test_no_reward_at_all_is_a_failure_and_named() -> None:
    record = make_record("r0", group=None)
    found = summarise("before", [record, make_record("r1", reward=1.0, group=None)], 1.0)
    assert (found.failed, found.left_out, found.reward, found.rewards) == (1, 1, 1.0, [None, 1.0])
    reason = "no-reward: it succeeded, but no finite reward of any kind was emitted"
    assert failure_reasons([record]) == f"1 × {reason}"
    assert found.failures_text() == f"1 of 2 failed, left out: {reason}"


def test_failures_count_by_the_failure_table() -> None:
    raised = [failed(f"f{n}", "agent-raised: ValueError: no such\n  tool") for n in range(3)]
    late = failed("f3", "timeout: 60 s")
    records = [*raised, late, make_record("r0", reward=1.0, group=None)]
    records.append(make_record("r1", reward=0.5, group=None))
    left_out = summarise("before", records, 1.0)
    assert left_out.reward == 0.75 and left_out.rewards == [None] * 4 + [1.0, 0.5]
    assert left_out.failures_text() == "4 of 6 failed, left out: agent-raised: ValueError: no such tool"
    table = Counting(read_failure_table({"agent-raised": 0.0}))
    mixed = summarise("before", records, 1.0, table)
    assert (mixed.reward, mixed.failed, mixed.left_out) == (0.3, 4, 1)
    assert mixed.failures_text().startswith("4 of 6 failed, 1 left out, 3 with the failure table's reward: ")
    table = Counting(read_failure_table({"agent-raised": 0.0, "timeout": -1.0}))
    all_given = summarise("before", records, 1.0, table)
    assert (all_given.reward, all_given.left_out) == (pytest.approx(0.5 / 6), 0)
    assert all_given.failures_text().startswith("4 of 6 failed, with the failure table's reward: ")


def test_what_a_failed_rollout_emitted_does_not_count() -> None:
    records = [failed("f0", "agent-raised: late", reward=1.0), make_record("r0", reward=0.0)]
    assert summarise("before", records, 1.0).reward == 0.0


def test_tasks_of_a_cluster_are_one_unit() -> None:
    records = [
        make_record(f"r{n}", reward=n % 7 / 7, group=f"g{n}", input={"db_id": f"db{n // 4}"})
        for n in range(24)
    ]
    alone, together = summarise("x", records, 1.0), summarise("x", records, 1.0, Counting(None, "db_id"))
    assert alone.reward == together.reward and alone.ci != together.ci
    assert together.interval == "bootstrap over 6 db_id" and alone.interval == "Student's t"


def test_a_task_without_the_clusters_field_is_refused_by_name() -> None:
    check_clusters([{"db_id": 1}], "db_id", "held-out tasks")
    check_clusters([3, "a"], None, "held-out tasks")
    with pytest.raises(
        ConfigError, match=r"evaluation.cluster: hard: task 1 has no field 'db_id' \(its fields"
    ):
        check_clusters([{"db_id": 1}, {"id": 1}], "db_id", "hard")
    with pytest.raises(ConfigError, match="it has no fields"):
        check_clusters(["a task"], "db_id", "hard")


def failed(rollout_id: str, reason: str, **given: Any) -> Record:
    """A rollout that failed with this reason."""
    record = make_record(rollout_id, status=RolloutStatus.FAILED, group=None, **given)
    return msgspec.structs.replace(record, rollout=msgspec.structs.replace(record.rollout, reason=reason))


def test_a_misfit_is_of_rewards_that_were_emitted_and_are_not_read() -> None:
    final, bare = make_record("r0", reward=1.0), make_record("r1")
    failed = make_record("r2", reward=1.0, status=RolloutStatus.FAILED)
    assert unread_rewards([final, bare, failed], "per_call").startswith(
        "1 of 3 rollouts have rewards of the rollout only"
    )
    for rule in ("broadcast", "last", "discounted", "per_agent", "a plugin's"):
        assert unread_rewards([final, bare, failed], rule) == ""
