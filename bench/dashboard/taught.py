"""Trains a step in which a policy is its own teacher by a hint: `python bench/dashboard/taught.py FOLDER`."""

from __future__ import annotations

import sys
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl


@agl.rollout
async def agent(task: Any, llm: Any) -> None:
    """Ask once; nothing is rewarded."""
    messages: Any = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=8)


def hint(task: Any, rollout: Any, group: Any) -> str:
    """What the teacher is told."""
    return f"The answer is {task['answer']}."


if __name__ == "__main__":
    tasks = [{"question": f"What is {n} + {n}?", "answer": 2 * n} for n in range(1, 9)]
    agl.Trainer(
        algorithm="distill",
        policy="tiny",
        steps=1,
        batch_size=4,
        options={"threads": 1, "engine": "thread", "max_len": 200},
        distill={"teacher": "self", "hint": hint},
        output=sys.argv[1],
        run="taught",
    ).fit(agent, tasks)
