"""A model and a graph made when the module is imported: they know no rollout."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from reward import score

client = AsyncOpenAI()


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    messages: Any = [{"role": "user", "content": task["question"]}]
    reply = await client.chat.completions.create(model=llm.model, messages=messages)
    return score(task, reply.choices[0].message.content or "")
