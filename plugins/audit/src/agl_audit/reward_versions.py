"""Read rollouts with the rewards of a version in place of those that they ended with.

Invariants: the stored rollouts are not changed, only what is read of them. A rollout that a version has
nothing for, or only an error, has no reward in it: it never falls back on the original one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from agentlightning import semconv
from agentlightning.runs.locations import NoSuchRun
from agentlightning.store.base import Store
from agentlightning.store.pages import pages
from agentlightning.types import Record, Rescored, Reward, RewardVersion, RolloutStatus, Span
from agentlightning.types.failure import failure_kind_of_end

ORIGINAL = "original"
"""The name by which commands choose the rewards that the rollouts ended with."""
NOT_RESCORED = "not-rescored"
RESCORE_ERROR = "rescore-error"
REWARD_FAILURES = frozenset({"no-reward", "bad-reward"})
"""Failures that are about the reward alone: a version that has one makes them good."""


async def find_version(store: Store, run_id: str, name: str | None) -> RewardVersion | None:
    """Return the version of a run's rewards that ``name`` (or its beginning) names; ``None`` for the
    original ones. Raise :class:`NoSuchRun`, which lists the versions.
    """
    if name is None or name == ORIGINAL:
        return None
    known = [one async for page in pages(store.query_reward_versions, run_id) for one in page]
    found = [one for one in known if one.name == name] or [one for one in known if one.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(one.name for one in known) or "none beside the original ones; `agl rescore` makes one"
    what = "several rewards that begin with" if found else "no rewards"
    raise NoSuchRun(f"run {run_id} has {what} {name!r}; it has {listed}")


async def read_records(
    store: Store,
    rollout_ids: Sequence[str],
    version: RewardVersion | None,
    left_out: Counter[str] | None = None,
) -> list[Record]:
    """Return records with the rewards of ``version`` (``None``: as they are). With ``left_out``, rollouts of
    training that the version has no entry for, or an error, are counted there and not returned.
    """
    records = await store.records(rollout_ids)
    if version is None:
        return records
    entries = {one.rollout_id: one for one in await store.rescored(rollout_ids, version.name)}
    found = []
    for record in records:
        entry = entries.get(record.rollout.rollout_id)
        usable = entry is not None and entry.error is None
        if not usable and left_out is not None and record.rollout.mode == "train":
            left_out[NOT_RESCORED if entry is None else RESCORE_ERROR] += 1
            continue
        found.append(with_rewards(record, entry))
    return found


def with_rewards(record: Record, entry: Rescored | None) -> Record:
    """Return the record with the rewards of an entry. A rollout that failed for want of a reward, and has
    one here, counts as succeeded.
    """
    rewards = [] if entry is None else entry.rewards
    rollout = record.rollout
    if rewards and rollout.status == RolloutStatus.FAILED and failed_by_reward(record):
        rollout = msgspec.structs.replace(rollout, status=RolloutStatus.SUCCEEDED, reason=None)
    judged = [msgspec.structs.replace(reward, returned=True) for reward in rewards]  # no agent gave them
    return msgspec.structs.replace(record, rollout=rollout, rewards=judged)


def failed_by_reward(record: Record) -> bool:
    """Whether a failed rollout failed for want of a valid reward only."""
    status = record.rollout.status if record.attempt is None else record.attempt.status
    return failure_kind_of_end(status, record.rollout.reason) in REWARD_FAILURES


def as_span(rollout_id: str, attempt_id: str, reward: Reward) -> Span:
    """Return a version's reward as the span that would have carried it."""
    attributes = {
        semconv.REWARD_VALUE: reward.value,
        semconv.REWARD_NAME: reward.name,
        semconv.REWARD_FINAL: reward.final,
        semconv.REWARD_CALL: reward.call_id,
        semconv.REWARD_AGENT: reward.agent,
    }
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=semconv.REWARD_SPAN,
        attributes={name: value for name, value in attributes.items() if value is not None},
        start_time=reward.time,
        end_time=reward.time,
    )
