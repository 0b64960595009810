"""Name the kind of failure of a rollout, for the failure table (:mod:`agentlightning.types.failure`).

By default every kind is *left out*: no row, no part in any baseline, counted. If the table gives a kind a
reward, the rollout is credited as if it had ended with that final reward; its other rewards do not count.
The store has made all retries before credit sees a record.
"""

from __future__ import annotations

from agentlightning.credit.eligibility.trainable import NOT_LIVE, superseded_calls
from agentlightning.credit.eligibility.verdicts import unrecorded
from agentlightning.credit.scoring.rewards import resolve
from agentlightning.types import Record, RolloutStatus
from agentlightning.types.failure import SET_ASIDE_REASON, failure_kind_of_end


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
