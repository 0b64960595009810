"""The one reward of a rollout: the number that training metrics, evaluations, comparisons, lists, the
dashboard and rescoring show of it.

Invariant: there is no other way from a record to that number. Beside it, credit rules read the rewards of
calls and agents (:mod:`agentlightning.credit.scoring.rules`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from agentlightning.credit.eligibility.failure import failure_of
from agentlightning.credit.scoring.rewards import resolve
from agentlightning.types import Record, Rollout
from agentlightning.types.failure import FAILURE_KINDS, FailureTable, failure_kind, reward_by_table


class RolloutReward(NamedTuple):
    """What a rollout earned."""

    value: float | None
    """Its reward; ``None``: it has none, and counts in no mean."""
    failure: str | None = None
    """Kind of its failure; ``None``: it succeeded with a reward, or has not ended."""
    reason: str = ""
    """Kind and details of the failure; empty without one."""


def rollout_reward(record: Record, table: FailureTable | None = None) -> RolloutReward:
    """Return the reward of a rollout under the failure table of its run (``None``: the defaults, which give a
    failure no reward).

    A rollout that failed has the reward that the table gives its kind of failure, or none, whatever it
    emitted. Any other has its final reward; if none was emitted, the mean of the rewards of its calls and
    agents. One that has not ended has none yet. In an evaluation the agent need not ask the model: there
    ``no-call`` is no failure.
    """
    rollout = record.rollout
    if not rollout.status.final:
        return RolloutReward(None)
    rewards, failure = resolve(record), failure_of(record)
    if failure == "no-call" and _is_evaluated(rollout):
        failure = "no-reward" if rewards.outcome is None else None
    if failure is None:
        return RolloutReward(rewards.outcome)
    return RolloutReward(reward_by_table(failure, table), failure, _reason(record, failure))


def failure_reasons(found: Iterable[RolloutReward]) -> list[str]:
    """Return the reasons of failures, the commonest first, each once."""
    return [reason for reason, _ in Counter(one.reason for one in found if one.failure).most_common()]


def _is_evaluated(rollout: Rollout) -> bool:
    """Whether the rollout belongs to an evaluation, maybe one on tasks of training."""
    return rollout.mode != "train" or "evaluation" in rollout.metadata


def _reason(record: Record, failure: str) -> str:
    """Return the reason on record, after its kind."""
    told = (record.attempt.reason if record.attempt else None) or record.rollout.reason or ""
    if failure_kind(told) is not None:
        return told
    return f"{failure}: {told or FAILURE_KINDS.get(failure, 'no reason was given')}"
