"""The calc_x agent with 30 % of its rollouts broken: they hang, raise, or make no call.

Which, and how, is a function of the rollout's seed: so the drill can tell afterwards, and every attempt of a
rollout breaks the same way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from agentlightning import LLM
from agentlightning.types import Rollout
from calc_x import agent as healthy

SHARE = 0.3
WAYS = {"hangs": ("straggler", "timeout"), "raises": ("agent-raised",), "makes no call": ("no-call",)}
"""How it breaks → the kinds of failure that this may come out as."""


async def solve(task: Mapping[str, Any], llm: LLM, rollout: Rollout) -> float:
    """Answer as calc_x does, and break, or not. What breaks has a reward to lose: it must not be a zero."""
    way = way_of(rollout.seed)
    if way == "makes no call":
        return 1.0
    reward = await healthy.solve(task, llm)
    if way == "raises":
        raise RuntimeError("the tool server is gone")
    if way == "hangs":
        await asyncio.Event().wait()
    return reward


def way_of(seed: int | None) -> str | None:
    """How a rollout breaks; ``None``: it does not."""
    chance = random.Random(f"unruly/{seed}")
    return chance.choice(list(WAYS)) if chance.random() < SHARE else None
