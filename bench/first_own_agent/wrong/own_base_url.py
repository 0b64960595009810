"""A client with an address of its own: nothing listens there."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from reward import score

SERVER = "http://127.0.0.1:9/v1"


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    messages: Any = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=SERVER, api_key=llm.api_key, max_retries=0) as client:
        reply = await client.chat.completions.create(model=llm.model, messages=messages)
    return score(task, reply.choices[0].message.content or "")
