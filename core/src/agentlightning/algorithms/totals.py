"""Totals over the steps of a run. The run's summary and every checkpoint hold them."""

from __future__ import annotations

from typing import Any

from agentlightning.types import StepReport

TOTALS = {
    "rollouts": "rollouts",
    "rollouts_failed": "rollouts_failed",
    "calls": "calls",
    "calls_exact": "verdicts/exact",
    "calls_no_ids": "verdicts/no-ids",
    "calls_left_behind": "left_out/other-attempt",
    "calls_frozen": "left_out/frozen-policy",
    "calls_trained": "calls_trained",
    "calls_disputed": "calls_disputed",
    "calls_left_out_by_agent": "left_out/mismatch-by-agent",
    "rewards_by_agent_ignored": "reward_unused/by-agent",
    "tokens_trained": "tokens_trained",
    "tokens_zero_advantage": "tokens_zero_advantage",
}
"""Sums over the run's steps → the metric that is summed."""


PER_POLICY = ("rows", "calls", "calls_trained", "tokens_trained", "optimizer_steps", "skipped")
"""Metrics that are summed for each of several policies; ``skipped``: steps without an update."""


class Totals:
    """Sums over the steps that were reported."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {**dict.fromkeys(TOTALS, 0.0), "logprob_gap_max": None}
        """``logprob_gap_max``: ``None`` until a driver has measured it."""
        self.policies: dict[str, dict[str, float]] = {}
        """Policy → sums over its steps, in a run with named policies."""
        self._step: dict[str, float] = {}
        """Metrics that the policies of the step share, until the first report adds them."""

    def state(self) -> dict[str, Any]:
        """Return the totals' part of a checkpoint."""
        kept: dict[str, Any] = {"totals": self.values}
        return {**kept, "policies": self.policies} if self.policies else kept

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the sums of :meth:`state`."""
        self.values.update(state.get("totals", {}))
        self.policies = state.get("policies", {})

    def collected(self, metrics: dict[str, float]) -> None:
        """Note a collected step; ``metrics``: of all its policies together."""
        self._step = metrics

    def count(self, report: StepReport, *, multi_policy: bool) -> None:
        """Add a report. ``multi_policy``: the run has named policies, whose shared metrics are added once."""
        metrics, gap = report.metrics, report.metrics.get("logprob_gap_max")
        if multi_policy:
            metrics, self._step = self._step, {}
            mine = self.policies.setdefault(report.policy, dict.fromkeys(PER_POLICY, 0.0))
            for name in PER_POLICY:
                mine[name] += report.metrics.get(name, 0.0)
        for total, metric in TOTALS.items():
            self.values[total] += metrics.get(metric, 0.0)
        if gap is not None:
            self.values["logprob_gap_max"] = max(self.values["logprob_gap_max"] or 0.0, gap)
