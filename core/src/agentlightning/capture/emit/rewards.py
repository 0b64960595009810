"""Read rewards back from spans.

Invariant: a span without a finite number is no reward, and never 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from agentlightning.types import Span
from agentlightning.types.record import (
    by_precedence,
    effective_reward,
    is_rollout_reward,
    reward_of,
)


def get_reward_value(span: Span) -> float | None:
    """Return the number of a reward span; ``None`` for other spans."""
    reward = reward_of(span)
    return reward.value if reward is not None and math.isfinite(reward.value) else None


def find_reward_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that carry a reward, in their order."""
    return [span for span in spans if get_reward_value(span) is not None]


def find_final_reward(spans: Iterable[Span]) -> float | None:
    """Return the reward of the rollout, by the rule that training follows; ``None`` if there is none.

    A reward named ``reward`` comes before others, and a returned reward before an emitted one; of equal
    rewards the last in the list counts.
    """
    read = (reward_of(span) for span in by_precedence(find_reward_spans(spans)))
    whole = [reward for reward in read if reward is not None and is_rollout_reward(reward)]
    return effective_reward(whole).value if whole else None
