"""The examples' own agents, unmodified, in a run whose training sees no reward: an evaluation still does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning import Rollout
from agentlightning.types import Record
from calc_x.agent import solve
from calc_x.datasets import load
from calc_x.teacher import teach

GOLD = 512
"""Problems whose gold answers are imitated: as many as the hinted run rolls out."""


async def calculator(task: Mapping[str, Any], llm: Any, rollout: Rollout) -> float | None:
    """Run the calculator agent; what it earned is told to evaluations alone."""
    reward = await solve(task, llm)
    return None if rollout.mode == "train" else reward


def gold(task: Mapping[str, Any], rollout: Record, group: Sequence[Record]) -> str:
    """What the policy is shown as its own teacher: the expression and its value."""
    return f"The right expression is {task['expression']} and the answer is {task['result']}."


def gold_chats() -> list[dict[str, Any]]:
    """The gold answers of both of the agent's calls for :data:`GOLD` training problems, to be imitated."""
    pairs = [teach(problem, mistaken=False) for problem in load("generated:train", limit=GOLD, seed=1)]
    return [
        {"messages": [*one.messages, one.reply], **({"tools": one.tools} if one.tools else {})}
        for pair in pairs
        for one in pair
    ]
