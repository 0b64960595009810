"""The router's own agent, unmodified, in a run whose training sees no reward: an evaluation still does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning import Rollout
from agentlightning.types import Record
from router.agent import agent
from router.datasets import load
from router.prompts import to_route

GOLD = 512
"""Questions whose gold answers are imitated: as many as the hinted run rolls out."""


async def router(task: Mapping[str, Any], llm: Any, rollout: Rollout) -> float | None:
    """Run the router; what it earned is told to evaluations alone."""
    reward = await agent(task, llm)
    return None if rollout.mode == "train" else reward


def gold(task: Mapping[str, Any], rollout: Record, group: Sequence[Record]) -> str:
    """What the policy is shown as its own teacher: the right name."""
    return f"The right database is {task['answer']}."


def gold_chats() -> list[dict[str, Any]]:
    """The gold answers of :data:`GOLD` training questions, to be imitated."""
    return [
        {
            "messages": [
                *to_route(task["question"], task["databases"], task["show"]),
                {"role": "assistant", "content": task["answer"]},
            ]
        }
        for task in load("train")[:GOLD]
    ]
