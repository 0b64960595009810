"""Agents of the tests of worker processes: importable, and each with a vice."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from typing import Any

import psutil

from agentlightning import LLM, current_attempt, emit_annotation, emit_reward, rollout
from agentlightning.decorator.agents import RunnableAgent
from agentlightning.types import Resource, Rollout


async def misbehave(task: Any) -> Any:
    """Does what the task says; a task that is a number is its own reward."""
    if not isinstance(task, str):
        return float(task)
    return await VICES[task]()


async def _segfault() -> None:
    emit_reward(0.5)
    ctypes.string_at(0)


async def _hold_the_gil() -> None:
    emit_reward(0.5)
    collections.deque(itertools.repeat(0), maxlen=0)  # C that never lets go


async def _swallow() -> None:
    emit_reward(0.5)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def _spin() -> None:
    emit_reward(0.5)
    while True:
        pass


async def _exit() -> None:
    sys.exit(3)


async def _exit_hard() -> None:
    emit_reward(0.5)
    os._exit(7)


async def _interrupt() -> None:
    raise KeyboardInterrupt


async def _read_stdin() -> float:
    return 1.0 if sys.stdin.read() == "" else 0.0


async def _noise() -> float:
    os.write(1, b"noise on stdout \xff\n" * 10)
    print("more noise")
    return 1.0


async def _threads() -> float:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return 1.0


async def _fork() -> float:
    os.fork()
    return 1.0  # so says the other process too


async def _fork_and_hang() -> None:
    """A child in the group, one in a session of its own, and one whose parent is gone."""
    sleep = ["sleep", "3600"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.execvp("sleep", sleep)
        os._exit(0)
    await asyncio.sleep(0.1)
    for child in psutil.Process().children():
        if child.status() == psutil.STATUS_ZOMBIE:
            continue
        emit_reward(float(child.pid), name="child")
    await asyncio.Event().wait()


async def _storm() -> None:
    """Forks that fork, and hold the interpreter of none but themselves."""
    emit_reward(float(os.getpid()))
    for _ in range(10):
        if not os.fork():
            os.fork()
            time.sleep(3600)
    await asyncio.Event().wait()


async def _surrogates() -> None:
    raise RuntimeError("half a character: \ud800")


async def _environment() -> float:
    return float("AGL_SECRET" not in os.environ and "AGL_TOKEN" not in os.environ)


async def _pid() -> float:
    return float(os.getpid())


VICES = {
    name[1:].replace("_", " "): vice
    for name, vice in list(globals().items())
    if name.startswith("_") and asyncio.iscoroutinefunction(vice)
}


@rollout
async def echo(task: dict[str, Any]) -> float:
    """Says what it was given."""
    emit_annotation({"task": task["n"]})
    return 1.0


def sync_hang(task: Any) -> float:
    while task == "hang":
        pass
    return float(task)


@rollout
async def decorated(task: float) -> float:
    return task


async def ask(task: Any, llm: LLM) -> float:
    import openai  # half of a worker's start, which the other agents are spared

    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        said = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": str(task)}]
        )
    emit_reward(0.25, call=said)
    return 1.0


async def key_of(task: Any, llm: LLM) -> float:
    context = current_attempt()
    assert context is not None and context.key == llm.api_key and context.gateway == llm.endpoint
    return float(len(llm.api_key or ""))


class Configured(RunnableAgent):
    """An agent with state."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def rollout(self, task: float, resources: dict[str, Resource], rollout: Rollout) -> float:
        return task * self.factor
