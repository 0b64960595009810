"""The rewards of one record: of the rollout, of single calls, of agents.

Invariant: *missing is not zero*. A reward that was never emitted, or that is NaN, infinite or no number, is
``None`` with a reason; nothing here ever makes a 0.0 of it.

Which of several rewards counts: for one target (rollout, call, agent) the one named ``reward`` if there is
one, else any. Of several the returned one, else the one that the store took last
(:mod:`agentlightning.types.rewards`). The other names are dimensions, shown in the metrics as
``reward/<name>`` and used by no built-in rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentlightning.credit.advantage.spread import mean
from agentlightning.types import Call, Record, Reward
from agentlightning.types.rewards import (
    PRIMARY as PRIMARY,
    by_precedence,
    effective_reward as effective_reward,
    is_rollout_reward,
)


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
    …)."""

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
    to = attach_rewards(record)
    final, reason = _choose(to.rollout)
    return Rewards(
        final=final,
        reason=reason,
        calls={key: _choose(emitted)[0] for key, emitted in to.calls.items()},
        agents={key: _choose(emitted)[0] for key, emitted in to.agents.items()},
        by_name={r.name: float(r.value) for r in to.rollout if not defect(r.value)},
        missing=dict(to.missing),
    )


@dataclass(frozen=True, slots=True)
class AttachedRewards:
    """Rewards by target, in each list the one with the highest precedence last."""

    rollout: list[Reward] = field(default_factory=list)
    calls: dict[str, list[Reward]] = field(default_factory=dict)
    agents: dict[str, list[Reward]] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)

    @property
    def effective(self) -> list[Reward]:
        """The rewards that count: one for each target."""
        targets = [self.rollout, *self.calls.values(), *self.agents.values()]
        return [effective_reward(emitted) for emitted in targets if emitted]


def attach_rewards(record: Record) -> AttachedRewards:
    """Group the rewards of a record by their targets."""
    out = AttachedRewards()
    spans = _calls_of_spans(record.calls)
    known = {call.call_id for call in record.calls}
    for reward in _in_precedence_order(record):
        if reason := defect(reward.value):
            out.missing[reason] += 1
        if reward.call_id is not None or reward.span_id is not None:
            targets = _targets(reward, known, spans)
            out.missing.update({"unknown-call": 1} if not targets else {})
            for call_id in targets:
                out.calls.setdefault(call_id, []).append(reward)
        elif reward.agent is not None:
            out.agents.setdefault(reward.agent, []).append(reward)
        elif reward.final:
            out.rollout.append(reward)
        else:
            out.missing["unattached"] += 1
    return out


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


def final_rewards(record: Record) -> list[Reward]:
    """The rewards of the whole rollout, the one with the highest precedence last."""
    return [reward for reward in _in_precedence_order(record) if is_rollout_reward(reward)]


def _in_precedence_order(record: Record) -> Sequence[Reward]:
    return by_precedence(record.rewards, record.rollout.config.emitted_overrides_returned)


def _choose(emitted: list[Reward]) -> tuple[float | None, str]:
    """The reward that counts, or ``None`` and why. It counts even if it is NaN."""
    if not emitted:
        return None, "none"
    value = effective_reward(emitted).value
    reason = defect(value)
    return (None, reason) if reason else (float(value), "")


def _calls_of_spans(calls: Iterable[Call]) -> dict[str, list[str]]:
    spans: dict[str, list[str]] = {}
    for call in calls:
        if call.span_id:
            spans.setdefault(call.span_id, []).append(call.call_id)
    return spans


def _targets(reward: Reward, known: set[str], spans: dict[str, list[str]]) -> list[str]:
    if reward.call_id is not None:
        return [reward.call_id] if reward.call_id in known else []
    return spans.get(reward.span_id or "", [])
