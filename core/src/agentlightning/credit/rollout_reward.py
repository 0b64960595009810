"""What a rollout earned: the kind of its failure, or its one reward.

The reward is the number that training metrics, evaluations, comparisons, lists, the dashboard and rescoring
show of it. Invariant: there is no other way from a record to that number. Beside it, credit rules read the
rewards of calls and agents (:mod:`agentlightning.credit.rules`).

By default every kind of failure is *left out*: no row, no part in any baseline, counted. If the failure table
(:mod:`agentlightning.types.failure`) gives a kind a reward, the rollout is credited as if it had ended with
that final reward; its other rewards do not count. The store has made all retries before credit sees a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from agentlightning import semconv
from agentlightning.credit.eligibility import NOT_LIVE, superseded_calls
from agentlightning.credit.rewards import resolve
from agentlightning.credit.verdicts import unrecorded
from agentlightning.types import Record, Rollout, RolloutStatus
from agentlightning.types.failure import (
    FAILURE_KINDS,
    SET_ASIDE_REASON,
    FailureTable,
    failure_kind,
    failure_kind_of_end,
    reward_by_table,
)


def failure_of(record: Record) -> str | None:
    """Return the kind of failure of a record; ``None`` if it succeeded with a reward to learn from.

    Under the over-length policy ``drop``, one prompt that was too long fails its rollout. An agent that
    returned without a single answer from the model is ``no-call``, whatever its reward: the policy had no
    part in it. An answered call that bypassed the gateway counts as an answer.
    """
    rollout, attempt = record.rollout, record.attempt
    if rollout.status != RolloutStatus.SUCCEEDED:
        cancelled = rollout.status == RolloutStatus.CANCELLED
        ended = rollout.status if attempt is None or cancelled else attempt.status
        return failure_kind_of_end(ended, rollout.reason)
    if SET_ASIDE_REASON in rollout.metadata:
        return failure_kind_of_end("failed", str(rollout.metadata[SET_ASIDE_REASON]))
    if any(call.edited.get("over_length") == "drop" for call in record.calls):
        return "over-length"
    if not _answered(record):
        return "no-call"
    rewards = resolve(record)
    return "no-reward" if rewards.final is None and not rewards.targeted else None


def _answered(record: Record) -> bool:
    """Whether the agent got an answer from the model, or the beginning of one."""
    superseded = superseded_calls(record)
    live = (
        call
        for call in record.calls
        if call.call_id not in superseded
        and (call.status not in NOT_LIVE or (call.status == "cancelled" and call.response_ids))
    )
    return any(True for _ in live) or any(span.status != "error" for span in unrecorded(record))


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
    missing = (one.attributes.get(semconv.REWARD_MISSING) for one in record.rewards)
    told = (record.attempt.reason if record.attempt else None) or record.rollout.reason
    told = told or next((str(why) for why in missing if why), "")
    if failure_kind(told) is not None:
        return told
    return f"{failure}: {told or FAILURE_KINDS.get(failure, 'no reason was given')}"
