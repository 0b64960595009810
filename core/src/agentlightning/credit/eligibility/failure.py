"""Decide by the failure table (:mod:`agentlightning.types.failure`) how a failed rollout is trained.

By default every kind is *left out*: no row, no part in any baseline, counted. If the table gives a kind a
reward, the rollout is credited as if it had ended with that final reward; nothing else it emitted counts.
The store has made all retries before credit sees a record.
"""

from __future__ import annotations

import msgspec

from agentlightning.credit.eligibility.trainable import NOT_LIVE, superseded_calls
from agentlightning.credit.eligibility.verdicts import unrecorded
from agentlightning.credit.scoring.rewards import resolve
from agentlightning.types import Record, Reward, RolloutStatus
from agentlightning.types.failure import SET_ASIDE_REASON, failure_kind_of_end


def failure_of(record: Record) -> str | None:
    """The kind of failure of a record; ``None`` if it succeeded with a reward to learn from.

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
    values = [rewards.final, *rewards.calls.values(), *rewards.agents.values()]
    return "no-reward" if all(value is None for value in values) else None


def with_reward(record: Record, value: float) -> Record:
    """The record as if its rollout had ended with this final reward and nothing else."""
    return msgspec.structs.replace(record, rewards=[Reward(value=value)])


def _answered(record: Record) -> bool:
    """Whether the agent got an answer from the model."""
    superseded = superseded_calls(record)
    live = (c for c in record.calls if c.status not in NOT_LIVE and c.call_id not in superseded)
    return any(True for _ in live) or any(span.status != "error" for span in unrecorded(record))
