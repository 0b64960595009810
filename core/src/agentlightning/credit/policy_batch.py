"""Split a step of several policies: the rows and metrics of each.

The rollouts of a step, their rewards and their ledgers belong to all policies alike; calls, groups, rows and
tokens belong to the policy that made them. Invariant: each row of a batch is in exactly one part.
"""

from __future__ import annotations

from agentlightning.types import Batch


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
