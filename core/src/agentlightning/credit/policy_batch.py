"""Split a step of several policies: rows and metrics of each.

The rollouts of a step, their rewards and their ledgers belong to all policies alike; calls, groups, rows and
tokens belong to the policy that made them. Invariant: each row of a batch is in exactly one part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentlightning.credit.advantage.baselines import Advantages
from agentlightning.credit.advantage.groups import grouped
from agentlightning.credit.advantage.spread import mean
from agentlightning.credit.ledger import RolloutAccount
from agentlightning.credit.metrics import counts_under, row_metrics
from agentlightning.types import Batch, Recipe, Row


def policy_metrics(
    policy: str,
    accounts: Sequence[RolloutAccount],
    groups: Advantages,
    rows: Sequence[Row],
    recipe: Recipe,
) -> dict[str, float]:
    """Return a policy's own metrics of a step.

    ``credit_mean``: mean over rollouts of the mean credit of the policy's calls, which its baseline
    compares; absent if no call was credited. ``credit_count``: number of these rollouts.
    """
    calls = [(call, a.out.get(call.call_id)) for a in accounts for call in a.record.calls]
    reasons = [reason for call, reason in calls if call.policy == policy]
    mine = [row for row in rows if row.policy == policy]
    trained = sum(segment.trained for row in mine for segment in row.segments)
    credited = [one for a in accounts for one in a.credited if one.call.policy == policy]
    rollouts = grouped(credited, lambda one: one.rollout_id).values()
    found: dict[str, float] = {
        "calls": len(reasons),
        "calls_trained": trained,
        "merged": trained - len(mine),
        **groups.counts(one.call.call_id for one in credited),
        "credit_count": len(rollouts),
        **counts_under("left_out", Counter(filter(None, reasons))),
        **row_metrics(mine, recipe),
    }
    if rollouts:
        found["credit_mean"] = mean([mean([one.credit for one in own]) for own in rollouts])
    return found


def policy_batch(batch: Batch, policy: str) -> Batch:
    """Return the batch for the driver of ``policy``: its rows, its own metrics, and the shared metrics."""
    rows = [row for row in batch.rows if row.policy == policy]
    own = {name for metrics in batch.policies.values() for name in metrics}
    shared = {
        name: value
        for name, value in batch.metrics.items()
        if name not in own and not name.startswith("left_out/")
    }
    return Batch(rows=rows, ledgers=batch.ledgers, metrics={**shared, **batch.policies.get(policy, {})})
