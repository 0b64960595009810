"""Agents of the tests of ``agl runner``: importable by its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentlightning import LLM


async def solve(task: Any) -> float:
    if task == "hang":
        print("hanging", flush=True)
        await asyncio.Event().wait()
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if isinstance(task, dict) and not os.path.exists(task["marker"]):  # kill -9, the first time
        with open(task["marker"], "x"):
            os.kill(os.getpid(), signal.SIGKILL)
    return float(task["reward"] if isinstance(task, dict) else task)


async def ask(task: Any, llm: LLM) -> float:
    import openai  # half of a process's start, which the other agents are spared

    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        said = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": str(task)}]
        )
    return float(said.choices[0].message.content == "ok")


async def wait_for_file(task: str) -> float:
    """Say that it runs, then wait until the file is there."""
    print("waiting", flush=True)
    while not os.path.exists(task):
        await asyncio.sleep(0.02)
    return 1.0


async def leaves_a_thread(task: float) -> float:
    """Leave a thread behind that keeps a process from ending, and one of an executor."""
    threading.Thread(target=threading.Event().wait, name="left-behind", daemon=False).start()
    ThreadPoolExecutor(1, "pooled").submit(threading.Event().wait)
    return float(task)


async def blocks(task: str) -> float:
    """Block the event loop for ever."""
    print("waiting", flush=True)
    threading.Event().wait()
    return 1.0
