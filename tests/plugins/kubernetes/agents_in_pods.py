"""Agents that the pods of the tests run."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import openai

import agentlightning as agl


async def half(task: float) -> float:
    return task / 2


async def wait_for_file(task: str) -> float:
    """Note that it runs in ``<task>.began``, and go on when the file ``task`` is there."""
    with Path(f"{task}.began").open("a") as file:
        file.write(f"{os.getpid()}\n")
    until = time.monotonic() + 600
    while not Path(task).exists():
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    return 1.0


def exits_with_7(task: Any) -> float:
    os._exit(7)


@agl.rollout
async def ask(task: str, llm: agl.LLM) -> float:
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    async with client:
        said = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task}]
        )
    return float("AGL_TOKEN" in os.environ) + float(bool(said.choices))
