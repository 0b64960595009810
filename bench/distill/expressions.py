"""The agent of word problems, with its solved examples, in a run whose training sees no reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning import Rollout
from agentlightning.types import Record
from word_problems.agent import solve_few_shot
from word_problems.problems import load
from word_problems.prompts import few_shot

GOLD = 512
"""Problems whose gold expressions are imitated: as many as the hinted run rolls out."""


async def solver(task: Mapping[str, Any], llm: Any, rollout: Rollout) -> float | None:
    """Run the agent; what it earned is told to evaluations alone."""
    reward = await solve_few_shot(task, llm)
    return None if rollout.mode == "train" else reward


def gold(task: Mapping[str, Any], rollout: Record, group: Sequence[Record]) -> str:
    """What the policy is shown as its own teacher: the right expression."""
    return f"The right expression is {task['expression']}"


def gold_chats() -> list[dict[str, Any]]:
    """The gold expressions of :data:`GOLD` training problems, to be imitated."""
    return [
        {"messages": [*few_shot(p["question"]), {"role": "assistant", "content": p["expression"]}]}
        for p in load("train")[:GOLD]
    ]
