"""Read rewards from spans and choose the one that counts. Every component uses these functions.

Rewards count in the order in which the store received them, whatever the senders' clocks say. A reward that
the agent *returned* overrides those it *emitted*, unless the rollout's configuration reverses that
(``emitted_overrides_returned``).

Invariant: a reward span without a number is a reward of NaN, for the failure table to decide; it is never
ignored and never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from agentlightning import semconv
from agentlightning.types.record import Reward, Span

PRIMARY = "reward"
"""Name of the reward that is trained."""
_OURS = frozenset(value for name, value in vars(semconv).items() if name.startswith("REWARD_"))
_NARROWED = (semconv.REWARD_CALL, semconv.REWARD_SPAN_ID, semconv.REWARD_AGENT)
Ranked = TypeVar("Ranked", Reward, Span)


def reward_of(span: Span) -> Reward | None:
    """Return a reward span as a :class:`Reward`; ``None`` for any other span."""
    if span.name != semconv.REWARD_SPAN:
        return None
    a = span.attributes
    raw = a.get(semconv.REWARD_VALUE)
    value = _number(raw)
    call_id, span_id, agent = (a.get(name) for name in _NARROWED)
    return Reward(
        value=math.nan if value is None else value,
        name=str(a.get(semconv.REWARD_NAME, PRIMARY)),
        call_id=call_id,
        span_id=span_id,
        agent=agent,
        final=bool(a.get(semconv.REWARD_FINAL, call_id is None and span_id is None and agent is None)),
        returned=span.returned,
        attributes=dict(a) if value is None else {k: v for k, v in a.items() if k not in _OURS},
        time=span.end_time or span.start_time,
    )


def _number(raw: object) -> float | None:
    try:
        return float(raw) if isinstance(raw, int | float) else None
    except OverflowError:  # an integer beyond all floats
        return None


def by_precedence(given: Sequence[Ranked], emitted_overrides: bool = False) -> list[Ranked]:
    """Sort rewards: the store's order stays, and the ones of higher precedence come last."""
    return sorted(given, key=lambda one: one.returned is not emitted_overrides)


def effective_reward(emitted: Sequence[Reward]) -> Reward:
    """Return the reward that counts for a target, from its rewards in the order of :func:`by_precedence`."""
    return next((r for r in reversed(emitted) if r.name == PRIMARY), emitted[-1])


def reward_target(span: Span) -> tuple[object, ...] | None:
    """Return target and name of a reward span, ``None`` for any other span. One of several spans with the
    same target and name counts.
    """
    r = reward_of(span)
    return None if r is None else (r.name, str(r.call_id), str(r.span_id), str(r.agent), r.final)


def is_rollout_reward(reward: Reward) -> bool:
    """Return whether the reward is for the whole rollout."""
    return reward.final and reward.call_id is reward.span_id is reward.agent is None
