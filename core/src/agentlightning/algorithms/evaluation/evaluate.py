"""Evaluation: the mean reward of an agent on tasks, with a 95 % interval and counts of its calls."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from agentlightning.algorithms.rollouts.enqueue import enqueue
from agentlightning.credit.eligibility.failure import failure_of
from agentlightning.credit.eligibility.verdicts import verdicts
from agentlightning.credit.ledger import open_ledger
from agentlightning.credit.scoring.rewards import resolve
from agentlightning.credit.scoring.rules import READS
from agentlightning.store.base import Store
from agentlightning.types import Evaluation, Record, Rollout, RolloutStatus, UsageError
from agentlightning.types.base import LEARNED_NOTHING
from agentlightning.types.failure import TRACEBACK

Z95 = 1.959963984540054


class NothingRewarded(UsageError):
    """No rollout was rewarded: the agent or its environment is broken, and training would learn nothing."""

    status = LEARNED_NOTHING


def interval(rewards: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean: Wilson's score interval for 0/1 rewards, else the normal one.

    ``None`` without a reward, or with a single reward other than 0 and 1.
    """
    n = len(rewards)
    if n == 0:
        return None
    mean = math.fsum(rewards) / n
    if all(r in (0.0, 1.0) for r in rewards):
        centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n * n)) / (1 + Z95**2 / n)
        # A mean of 0 or 1 is an end of its interval; in floats that end can fall short of it by a last bit.
        return (max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half)))
    if n == 1:
        return None
    variance = math.fsum((r - mean) ** 2 for r in rewards) / (n - 1)
    half = Z95 * math.sqrt(variance / n)
    return (mean - half, mean + half)


async def evaluate(store: Store, name: str, rollouts: Sequence[Rollout]) -> tuple[Evaluation, list[Record]]:
    """Run ``rollouts``, one of each task, and average their rewards; return the evaluation and its records.

    A rollout that failed or emitted no reward counts as 0 *here*, because a broken agent has solved
    nothing; ``failed`` counts them. (Training leaves such rollouts out.) A rollout with rewards of calls or
    agents only counts as their mean. Raises :class:`NothingRewarded` if no rollout has a reward.
    """
    if not rollouts:
        raise UsageError(f"evaluation {name!r}: there are no tasks")
    began = time.perf_counter()
    ids = await enqueue(store, rollouts)
    await store.wait_for_rollouts(ids)
    records = await store.records(ids)
    evaluation = summarise(name, records, time.perf_counter() - began)
    if evaluation.failed == evaluation.n:
        raise NothingRewarded(
            f"evaluation {name!r}: none of {evaluation.n} rollouts got a reward: {failure_reasons(records)}"
            f"{first_traceback(records)}"
        )
    return evaluation, records


def failure_reasons(records: Sequence[Record]) -> str:
    """Return why rollouts have no reward, the commonest reason first, for an error message."""
    found: Counter[str] = Counter()
    for record in records:
        if record.rollout.status != RolloutStatus.SUCCEEDED:
            reason = record.attempt.reason if record.attempt else None
            found[reason or record.rollout.reason or record.rollout.status] += 1
        elif record.rollout.mode == "train" and failure_of(record) == "no-call":
            found["the agent got no answer of the model"] += 1
        elif resolve(record).outcome is None:
            found["the agent returned and emitted no reward"] += 1
    return "; ".join(f"{n} × {reason[:300]}" for reason, n in found.most_common(3))


def first_traceback(records: Sequence[Record]) -> str:
    """Return the traceback of the first rollout whose agent raised, to append to a message."""
    for record in records:
        traceback = record.attempt.metadata.get(TRACEBACK) if record.attempt else None
        if traceback:
            return f"\nThe first traceback, of {record.rollout.rollout_id}: {traceback}"
    return ""


def unread_rewards(records: Sequence[Record], rule: str) -> str:
    """Return a message if the credit rule does not read the rewards that the agent emits; an empty one if
    the rule reads them or is a plugin's.
    """
    unread: Counter[str] = Counter()
    for record in records:
        given = _rewarded_targets(record)
        if given and rule in READS and not given & READS[rule]:
            unread.update(given)
    if not unread:
        return ""
    kind, n = unread.most_common(1)[0]
    others = " or ".join(repr(name) for name, reads in READS.items() if kind in reads)
    return (
        f"{n} of {len(records)} rollouts have rewards of the {kind} only, which the rule {rule!r} does not "
        f"read; recipe.credit = {others} does"
    )


def _rewarded_targets(record: Record) -> set[str]:
    """Return the targets of a successful rollout's finite rewards: ``rollout``, ``calls``, ``agents``."""
    if record.rollout.status != RolloutStatus.SUCCEEDED:
        return set()
    rewards = resolve(record)
    found = {"rollout": [rewards.final], "calls": rewards.calls.values(), "agents": rewards.agents.values()}
    return {kind for kind, values in found.items() if any(value is not None for value in values)}


def summarise(name: str, records: Sequence[Record], seconds: float) -> Evaluation:
    """Return the evaluation of these records."""
    found = [resolve(r).outcome if r.rollout.status == RolloutStatus.SUCCEEDED else None for r in records]
    rewards = [0.0 if value is None else value for value in found]
    return Evaluation(
        name=name,
        n=len(rewards),
        reward=math.fsum(rewards) / len(rewards),
        ci=interval(rewards),
        failed=sum(value is None for value in found),
        rewards=rewards,
        seconds=seconds,
        metrics=call_metrics(records),
    )


def call_metrics(records: Sequence[Record]) -> dict[str, float]:
    """Return the number of calls, in all and by verdict, and of response tokens."""
    kinds: Counter[str] = Counter()
    made = recorded = 0
    for record in records:
        ledger = open_ledger(record, verdicts(record))
        made += ledger.made
        recorded += ledger.recorded
        kinds.update(ledger.verdicts)
    tokens = sum(len(call.response_ids or ()) for record in records for call in record.calls)
    return {
        "calls_made": float(made),
        "calls_recorded": float(recorded),
        "calls_exact": 0.0,
        "response_tokens": float(tokens),
        **{f"calls_{kind}": float(n) for kind, n in kinds.items()},
    }
