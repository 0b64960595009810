"""A client with a vendor's key and a vendor's model."""

from __future__ import annotations

import os
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from reward import score


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    messages: Any = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0) as client:
        reply = await client.chat.completions.create(model="gpt-4o", messages=messages)
    return score(task, reply.choices[0].message.content or "")
