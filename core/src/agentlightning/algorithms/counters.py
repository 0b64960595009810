"""What a run keeps count of from step to step: totals, and steps without a signal. Checkpoints hold both.

:class:`NoSignalGuard` ends a run, with the reason, when step after step gives nothing to learn from. Without
it, a dead engine, a broken agent or a wrong ``select`` would show only after all steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentlightning.algorithms.evaluate import (
    NothingRewarded,
    failure_reasons,
    first_traceback,
    unread_rewards,
)
from agentlightning.credit.accounts import agents_word
from agentlightning.types import Batch, Record, StepReport, UsageError
from agentlightning.types.base import LEARNED_NOTHING
from agentlightning.types.failure import OUTAGE_KINDS
from agentlightning.types.select import caller_name

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


# ------------------------------------------------------------------------------------------------ no signal
OUTAGE_FACTOR = 10
"""How many times ``training.no_signal_steps`` an outage may last."""


NO_VARIANCE_REASONS = frozenset({"zero-std", "group-of-one"})
"""Reasons for leaving calls out that are no error: all rollouts of the group were equally good."""


HOW_TO_GET_VARIANCE = (
    "Take tasks that the policy solves sometimes, rewards or grades in finer steps, a higher temperature or "
    "larger groups; `agl doctor` measures the spread"
)


LEFT_OUT = "The metrics left_out/… count why calls were not trained; `agl explain CALL` says it of one"


def nothing_learned(steps: int, idle: float, flat: bool, out: Counter[str]) -> str:
    """Return what a run prints that trained no token in ``steps`` steps, ``idle`` tokens with advantage 0.
    ``flat``: no group of its last step had a spread. ``out``: why calls of that step were left out.
    """
    left_out = f"In the last step calls were left out: {_listed(out)}. {LEFT_OUT}" if out else LEFT_OUT
    equal = f" ({idle:.0f} had advantage 0: no group had a spread)" if idle else ""
    advice = HOW_TO_GET_VARIANCE if idle or flat else left_out
    return f"This run learned nothing: not one token was trained in {steps} steps{equal}. {advice}."


class NothingTrained(UsageError):
    """Rollouts are rewarded, but none of their calls can be trained: a wrong ``select``, or no calls."""

    status = LEARNED_NOTHING


class NoSignalGuard:
    """Counts consecutive steps without a learning signal, of the run and of each policy.

    ``say``: prints a line at the terminal. ``rule``: the recipe's credit rule. ``limit``: steps in a row
    after which the run ends. A step in which every rollout failed by an outage (:data:`.OUTAGE_KINDS`) says
    nothing about agent and policy and is counted apart.
    """

    def __init__(self, say: Callable[[str], None], rule: str = "", limit: int = 3) -> None:
        self._say = say
        self._rule = rule
        self._limit = limit
        self.no_signal_steps = 0
        """Steps in a row without anything to learn, outages left out."""
        self.outage_steps = 0
        """Steps since the last one with something to learn that were outages."""
        self.zero_variance_steps = 0
        """Steps in a row in which no group had a spread."""
        self.left_out: Counter[str] = Counter()
        """Why calls of the last step were left out."""
        self.idle_policies: Counter[str] = Counter()
        """Policy → steps in a row without a row for it."""

    def state(self) -> dict[str, Any]:
        """Return the guard's part of a checkpoint."""
        more = {"outage": self.outage_steps, "flat": self.zero_variance_steps}
        kept = {"barren": self.no_signal_steps, **{name: n for name, n in more.items() if n}}
        return {**kept, "silent": dict(self.idle_policies)} if self.idle_policies else kept

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the counts of :meth:`state`."""
        self.no_signal_steps = state.get("barren", 0)
        self.outage_steps = state.get("outage", 0)
        self.zero_variance_steps = state.get("flat", 0)
        self.idle_policies.update(state.get("silent", {}))

    @staticmethod
    def learnable(batch: Batch) -> bool:
        """Whether a call is trained, or calls are left out only because their groups have no spread."""
        return bool(batch.metrics.get("calls_trained")) or _only_zero_variance(batch)

    def step(self, step: int, batch: Batch, records: Sequence[Record]) -> None:
        """Count a step; print the reasons at the first step without a reward. Raise :class:`.NothingRewarded`
        or :class:`NothingTrained` at the last step of the limit. ``records``: of the step's rollouts; they
        are not read if the step is :meth:`learnable`.
        """
        outage = _is_outage(batch)
        self.left_out = _left_out(batch)
        if self.learnable(batch):
            self.no_signal_steps = self.outage_steps = 0
        elif outage:
            self.outage_steps += 1
        else:
            self.no_signal_steps += 1
        if self.no_signal_steps >= self._limit:
            raise _ending_error(step, batch, records, self._rule, self._limit)
        if self.outage_steps >= OUTAGE_FACTOR * self._limit:
            raise NothingRewarded(
                f"{self.outage_steps} steps were outages, the last of them step {step + 1}: "
                f"{failure_reasons(records)}"
            )
        if (self.outage_steps if outage else self.no_signal_steps) == 1 and records and _unrewarded(batch):
            self._say(
                f"step {step + 1}: not one of {len(records)} rollouts got a reward: "
                f"{failure_reasons(records)}{first_traceback(records)}"
            )
        self._note_zero_variance(step, batch)
        if note := agents_word(batch.metrics):
            self._say(f"step {step + 1}: {note}")
        for name, own in batch.policies.items():
            self.idle_policies[name] = 0 if own["rows"] else self.idle_policies[name] + 1
            if self.idle_policies[name] == self._limit:
                left = {k.removeprefix("left_out/"): n for k, n in own.items() if k.startswith("left_out/")}
                out = ", ".join(f"{n:g} × {reason}" for reason, n in left.items())
                why = f"its calls were left out: {out}" if out else "no call went to it (see `policies`)"
                self._say(f"{self._limit} steps in a row trained nothing of policy {name!r}: {why}")

    def _note_zero_variance(self, step: int, batch: Batch) -> None:
        """Print once that steps teach nothing because all rollouts of each group get the same reward."""
        flat = batch.metrics.get("reward_count") and not batch.metrics.get("tokens_trained")
        flat = bool(flat and (_only_zero_variance(batch) or batch.rows))
        self.zero_variance_steps = self.zero_variance_steps + 1 if flat else 0
        if self.zero_variance_steps == self._limit:
            reward = batch.metrics.get("reward_mean", 0.0)
            self._say(
                f"steps {step - self._limit + 2} to {step + 1} taught nothing: in each group all "
                f"rollouts got the same reward (on average {reward:.3f}), so there is nothing to prefer. "
                f"{HOW_TO_GET_VARIANCE}"
            )


def _unrewarded(batch: Batch) -> bool:
    """Whether every rollout of the step lacks the reward that its credit rule reads, if it reads one."""
    m = batch.metrics
    lacking = sum(n for name, n in m.items() if name.startswith("failed/"))
    return not m.get("reward_count") and lacking >= m.get("rollouts", 0)


def _is_outage(batch: Batch) -> bool:
    """Whether every rollout of the step failed, and by an outage."""
    failed = sum(batch.metrics.get(f"failed/{kind}", 0) for kind in OUTAGE_KINDS)
    return bool(failed) and failed == batch.metrics.get("rollouts")


def _ending_error(step: int, batch: Batch, records: Sequence[Record], rule: str, limit: int) -> UsageError:
    """Return the error that ends the run."""
    idle = batch.metrics.get("failed/no-call") == len(records)
    if idle or not _unrewarded(batch):
        why = _why_untrained(records, batch, rule)
        return NothingTrained(f"{limit} steps in a row trained not one call: {why}")
    return NothingRewarded(
        f"steps {step - limit + 2} to {step + 1}: not one rollout got a reward; "
        f"in the last of them: {failure_reasons(records)}{first_traceback(records)}"
    )


def _left_out(batch: Batch) -> Counter[str]:
    """Return why calls of the step were left out, with their numbers."""
    return sum((Counter(ledger.left_out) for ledger in batch.ledgers), Counter())


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{n} × {reason}" for reason, n in reasons.most_common(3))


def _only_zero_variance(batch: Batch) -> bool:
    """Whether all calls were left out for want of variance in their groups."""
    out = _left_out(batch).keys() - {"frozen-policy"}
    return bool(out) and out <= NO_VARIANCE_REASONS


def _why_untrained(records: Sequence[Record], batch: Batch, rule: str) -> str:
    """Return why no call was trained, and which agents made the calls."""
    if not (reasons_out := _left_out(batch)):
        return "the agent made no model call; is it using the endpoint it is given?"
    agents = sorted({caller_name(call.tags) for record in records for call in record.calls})
    if reasons_out["no-reward"] and (unfit := unread_rewards(records, rule)):
        return f"{_listed(reasons_out)}: {unfit}"
    return f"{_listed(reasons_out)}; calls came from {', '.join(agents)} (see `select`)"
