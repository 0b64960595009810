"""Read rewards from spans and choose the one that counts. Every component uses these functions.

Rewards count in the order in which the store received them, whatever the senders' clocks say. A reward that
the agent *returned* overrides those it *emitted*. Of an agent that is not trusted, emitted ones do not count
at all where a judge gave the rewards (:func:`is_judged`).

Invariant: a reward span without a number is a reward of NaN, for the failure table to decide; it is never
ignored and never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from agentlightning import semconv
from agentlightning.types.record import Record, Reward, Span

PRIMARY = "reward"
"""Name of the reward that is trained."""
REWARD_FORMATS: list[Callable[[Span], Span]] = []
"""Functions of plugins that make rewards of other formats ours (hook ``agl_reward_formats``)."""
_OURS = frozenset(value for name, value in vars(semconv).items() if name.startswith("REWARD_"))
_NARROWED = (semconv.REWARD_CALL, semconv.REWARD_SPAN_ID, semconv.REWARD_AGENT)
Ranked = TypeVar("Ranked", Reward, Span)


def reward_of(span: Span) -> Reward | None:
    """Return a reward span as a :class:`Reward`; ``None`` for any other span."""
    if span.name != semconv.REWARD_SPAN:
        return None
    a = span.attributes
    value = _number(a.get(semconv.REWARD_VALUE))
    call_id, span_id, agent = (a.get(name) for name in _NARROWED)
    if not all(isinstance(target, str | None) for target in (call_id, span_id, agent)):
        # A store of another version may hold it: a number for nobody, which is counted and never trained.
        return Reward(value=math.nan, final=False, returned=span.returned, attributes=dict(a))
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


def by_precedence(given: Sequence[Ranked]) -> list[Ranked]:
    """Sort rewards: the store's order stays, and the ones of higher precedence come last."""
    return sorted(given, key=lambda one: one.returned)


def is_judged(record: Record) -> bool:
    """Return whether the runner's side judged the attempt: it wrote a reward, or it has a reward function or
    rule, which may have given none.
    """
    marked = record.attempt is not None and record.attempt.metadata.get(semconv.JUDGED) is True
    return marked or any(reward.returned for reward in record.rewards)


def by_agent_beside_judge(record: Record) -> list[Reward]:
    """Return the rewards that do not count because the agent, which is not trusted, gave them to itself, and
    a judge gave the others.
    """
    if record.rollout.config.trusted or not is_judged(record):
        return []
    return [reward for reward in record.rewards if not reward.returned]


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
