"""Agents that other processes can import."""

from __future__ import annotations

import os
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl


@agl.rollout
async def ask(task: str, llm: agl.LLM, prompt_template: agl.PromptTemplate) -> float:
    """Asks the model once; rewarded for an answer that has the word."""
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key) as client:
        prompt: Any = [{"role": "user", "content": prompt_template.format(task=task)}]
        answer = await client.chat.completions.create(model=llm.model, messages=prompt)
    return float("ok" in (answer.choices[0].message.content or ""))


def elsewhere(task: Any) -> float:
    """Rewarded for running in another process than the one the task names."""
    return float(os.getpid() != task)
