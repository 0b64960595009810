"""Reading rewards back from spans.

Invariant: a span without a finite number is no reward; nothing here makes a 0.0 of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from agentlightning import semconv
from agentlightning.types import Reward, Span


def get_reward_value(span: Span) -> float | None:
    """The number a reward span carries; ``None`` for other spans."""
    value = span.attributes.get(semconv.REWARD_VALUE) if span.name == semconv.REWARD_SPAN else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def find_reward_spans(spans: Iterable[Span]) -> list[Span]:
    """The spans that carry a reward, in their order."""
    return [span for span in spans if get_reward_value(span) is not None]


def find_final_reward(spans: Iterable[Span]) -> float | None:
    """The rollout's reward: the last one that is final. ``None``: none was emitted."""
    found = None
    for span in find_reward_spans(spans):
        if span.attributes.get(semconv.REWARD_FINAL, True):
            found = get_reward_value(span)
    return found


def reward_of(span: Span) -> Reward | None:
    """A reward span as a :class:`Reward`; ``None`` for other spans."""
    value = get_reward_value(span)
    if value is None:
        return None
    a = span.attributes
    shown = {
        key: item
        for key, item in a.items()
        if not key.startswith("agl.reward.")
        and key not in (semconv.EVALUATION_NAME, semconv.EVALUATION_SCORE)
    }
    return Reward(
        value=value,
        name=str(a.get(semconv.REWARD_NAME, "reward")),
        call_id=a.get(semconv.REWARD_CALL),
        span_id=a.get(semconv.REWARD_SPAN_ID),
        agent=a.get(semconv.REWARD_AGENT),
        final=bool(a.get(semconv.REWARD_FINAL, True)),
        attributes=shown,
        time=span.end_time,
    )
