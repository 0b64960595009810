"""The rewards of one record: of the rollout, of single calls, of agents.

Invariant: *missing is not zero*. A reward that was never emitted, or that is NaN, infinite or no number, is
``None`` with a reason; nothing here ever makes a 0.0 of it.

Which of several rewards counts: for one target (rollout, call, agent) the one named ``reward`` if there is
one, else any. Of several the returned one, else the one that the store received last
(:mod:`agentlightning.types.record`). Of an agent that is not trusted, only a judge's count where there is
one. The other names are dimensions, shown in the metrics as ``reward/<name>`` and used by no built-in rule.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from agentlightning.credit.groups import mean
from agentlightning.types import Record, Reward
from agentlightning.types.record import by_agent_beside_judge, by_precedence, effective_reward

RewardTarget = tuple[str, str]
"""``("call", call id)``, ``("agent", name)`` or ``ROLLOUT``."""
ROLLOUT: RewardTarget = ("rollout", "")
BY_AGENT: Final = "by-agent"
"""Reason of rewards that an agent without trust gave itself beside a judge's (``docs/rewards.md``)."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """Resolved rewards. ``None`` as a value: a reward was emitted that is no finite number."""

    final: float | None
    """The reward of the rollout."""
    reason: str
    """Why ``final`` is missing: ``none`` (never emitted), ``nan``, ``inf``, ``not-a-number``; else empty."""
    calls: dict[str, float | None] = field(default_factory=dict)
    """Call id → its own reward."""
    agents: dict[str, float | None] = field(default_factory=dict)
    """Agent name → the reward of its calls."""
    by_name: dict[str, float] = field(default_factory=dict)
    """Name → last finite final reward of that name."""
    missing: dict[str, int] = field(default_factory=dict)
    """Reason → rewards that were emitted and could not be used (``nan``, ``unknown-call``, ``unattached``,
    ``by-agent``, …)."""

    @property
    def targeted(self) -> list[float]:
        """The finite rewards of single calls and of agents."""
        return [v for v in (*self.calls.values(), *self.agents.values()) if v is not None]

    @property
    def outcome(self) -> float | None:
        """One number for people: the final reward, or without one the mean of the calls' and agents'
        rewards. No rule trains on it.
        """
        if self.final is None and self.reason == "none" and self.targeted:
            return mean(self.targeted)
        return self.final


def resolve(record: Record) -> Rewards:
    """Group the rewards of a record by target and choose one for each target.

    Rewards are taken in the order of the list, which is the store's; ``time`` is the sender's clock and
    decides nothing. A reward with a span id belongs to every recorded call of that span (the choices of one
    request share it).
    """
    by_target, missing = attach_rewards(record)
    chosen: dict[str, dict[str, float | None]] = {"rollout": {}, "call": {}, "agent": {}}
    for (kind, name), emitted in by_target.items():
        value = effective_reward(emitted).value  # it counts even if it is NaN
        chosen[kind][name] = None if defect(value) else float(value)
    of_rollout = by_target.get(ROLLOUT, [])
    return Rewards(
        final=chosen["rollout"].get(""),
        reason=defect(effective_reward(of_rollout).value) if of_rollout else "none",
        calls=chosen["call"],
        agents=chosen["agent"],
        by_name={r.name: float(r.value) for r in of_rollout if not defect(r.value)},
        missing=dict(missing),
    )


def attach_rewards(record: Record) -> tuple[dict[RewardTarget, list[Reward]], Counter[str]]:
    """Group the rewards of a record by target, in each list the one with the highest precedence last, and
    count by reason those that cannot be used.
    """
    by_target: dict[RewardTarget, list[Reward]] = {}
    ignored = by_agent_beside_judge(record)
    missing: Counter[str] = Counter({BY_AGENT: len(ignored)} if ignored else {})
    counting = [reward for reward in record.rewards if reward.returned] if ignored else record.rewards
    calls: dict[tuple[str, str | None], list[str]] = {}
    for call in record.calls:
        calls["call", call.call_id] = [call.call_id]
        if call.span_id:
            calls.setdefault(("span", call.span_id), []).append(call.call_id)
    for reward in by_precedence(counting):
        if reason := defect(reward.value):
            missing[reason] += 1
        if reward.call_id is not None or reward.span_id is not None:
            key = ("span", reward.span_id) if reward.call_id is None else ("call", reward.call_id)
            targets = [("call", call_id) for call_id in calls.get(key, ())]
            missing.update([] if targets else ["unknown-call"])
        elif reward.agent is not None:
            targets = [("agent", reward.agent)]
        else:
            targets = [ROLLOUT] if reward.final else []
            missing.update([] if targets else ["unattached"])
        for target in targets:
            by_target.setdefault(target, []).append(reward)
    return by_target, missing


def defect(value: object) -> str:
    """Why a value is no reward: ``none``, ``nan``, ``inf``, ``not-a-number``; empty if it is a finite
    number."""
    if value is None:
        return "none"
    if not isinstance(value, int | float):
        return "not-a-number"
    if math.isnan(value):
        return "nan"
    return "inf" if math.isinf(value) else ""
