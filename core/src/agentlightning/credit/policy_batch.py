"""Split a step of several policies: rows and metrics of each.

The rollouts of a step, their rewards and their ledgers belong to all policies alike; calls, groups, rows and
tokens belong to the policy that made them. Invariant: each row of a batch is in exactly one part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentlightning.credit.advantage.baselines import Advantages
from agentlightning.credit.advantage.groups import CreditedCall
from agentlightning.credit.advantage.spread import mean
from agentlightning.credit.metrics import row_metrics
from agentlightning.types import Batch, Call, Recipe, Row

POLICY_METRICS = (
    "calls", "calls_trained", "calls_unpaired", "merged", "groups", "groups_zero_std", "groups_of_one",
    "left_out/",
)  # fmt: skip
"""Metrics that each policy has its own of, beside those of its rows; a name ending in ``/`` is a prefix."""


def policy_metrics(
    policy: str,
    calls: Sequence[tuple[Call, str | None]],
    credited: Sequence[CreditedCall],
    groups: Advantages,
    rows: Sequence[Row],
    recipe: Recipe,
) -> dict[str, float]:
    """A policy's own metrics of a step. ``calls``: each recorded call, and why it is not trained.

    ``credit_mean``: mean over rollouts of the mean credit of the policy's calls, which its baseline
    compares; absent if no call was credited. ``credit_count``: how many rollouts.
    """
    out = Counter(reason for call, reason in calls if call.policy == policy and reason)
    mine = [row for row in rows if row.policy == policy]
    made = sum(call.policy == policy for call, _ in calls)
    trained = sum(segment.trained for row in mine for segment in row.segments)
    own = [groups.calls[c.call.call_id] for c in credited if c.call.policy == policy]
    keys = {one.pool for one in own}
    zero_reasons = Counter(groups.zero_reasons[key] for key in keys)
    values: dict[str, list[float]] = {}
    for one in credited:
        if one.call.policy == policy:
            values.setdefault(one.rollout.rollout_id, []).append(one.credit)
    found: dict[str, float] = {
        "calls": made,
        "calls_trained": trained,
        "merged": trained - len(mine),
        "groups": len(keys),
        "groups_zero_std": zero_reasons["zero-spread"],
        "groups_of_one": zero_reasons["group-of-one"],
        "calls_unpaired": sum(bool(one.zero_reason) and not groups.zero_reasons[one.pool] for one in own),
        "credit_count": len(values),
        **{f"left_out/{reason}": n for reason, n in sorted(out.items())},
        **row_metrics(mine, recipe),
    }
    return {**found, "credit_mean": mean([mean(v) for v in values.values()])} if values else found


def policy_batch(batch: Batch, policy: str) -> Batch:
    """The batch for the driver of ``policy``: its rows, its own metrics, and the shared ones."""
    rows = [row for row in batch.rows if row.policy == policy]
    own = dict.fromkeys(
        (*row_metrics(batch.rows, Recipe(name="any")), *POLICY_METRICS), 0.0
    )  # the names alone count
    common = {name: value for name, value in batch.metrics.items() if not _is_policy_metric(name, own)}
    return Batch(rows=rows, ledgers=batch.ledgers, metrics={**common, **batch.policies.get(policy, {})})


def _is_policy_metric(name: str, own: dict[str, float]) -> bool:
    return name in own or any(name.startswith(prefix) for prefix in own if prefix.endswith("/"))
