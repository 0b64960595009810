"""The examples' own agents, unmodified, in a run whose training sees no reward: an evaluation still does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning import Rollout
from agentlightning.types import Record
from calc_x.agent import solve


async def calculator(task: Mapping[str, Any], llm: Any, rollout: Rollout) -> float | None:
    """Run the calculator agent; what it earned is told to evaluations alone."""
    reward = await solve(task, llm)
    return None if rollout.mode == "train" else reward


def gold(task: Mapping[str, Any], rollout: Record, group: Sequence[Record]) -> str:
    """What the policy is shown as its own teacher: the expression and its value."""
    return f"The right expression is {task['expression']} and the answer is {task['result']}."
