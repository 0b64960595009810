"""Agents that the actors of the tests run; their module is importable where Ray's workers start."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import openai

import agentlightning as agl


async def half(task: float) -> float:
    return task / 2


async def slowly(task: str) -> float:
    """Note the process, and go on when the file ``task`` is there."""
    with Path(f"{task}.began").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not Path(task).exists():
        await asyncio.sleep(0.05)
    return 1.0


@agl.rollout
async def ask(task: str, llm: agl.LLM) -> float:
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    async with client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return float(any(name in os.environ for name in ("AGL_SECRET", "AGL_TOKEN")))
