"""Environments by the id of their taskset.

An environment is served while a rollout of it runs: its interception server, and the tools that its rollouts
share. What a rollout has of its own (its trace, its state, the tools of its task) verifiers makes for each.
The tasks are loaded once in a process.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import verifiers.v1 as vf

HARNESS = "agl_verifiers"
"""The program that plays, by the package whose ``__all__`` names its class."""
_lock = threading.Lock()
_tasks: dict[tuple[str, str], list[Any]] = {}
_DEFAULT_TURNS = 16


class UnusableEnvironment(ValueError):
    """An environment whose rollouts cannot be run one by one, in this process."""


def environment(taskset: str, arguments: Mapping[str, Any], max_turns: int) -> Any:
    """Make the environment of one agent that plays the tasks of ``taskset``, an importable module or an
    installed package. ``arguments``: the fields of its config. Raise :class:`UnusableEnvironment` if it
    brings an environment of its own, of several agents, or needs a container.
    """
    described = {
        "taskset": {**arguments, "id": taskset},
        "agent": {
            "harness": {"id": HARNESS},
            "runtime": {"type": "subprocess"},
            "max_turns": max_turns,
        },
        "interception": {"type": "server"},
    }
    try:
        config = vf.resolve_env_config(described)
    except TypeError as error:
        raise UnusableEnvironment(f"environment {taskset!r} cannot be configured: {error}") from None
    if type(config) is not vf.SingleAgentEnvConfig:
        raise UnusableEnvironment(
            f"environment {taskset!r} brings {type(config).__name__}, with agents of its own; tasksets of "
            "one agent can be run here"
        )
    made = vf.SingleAgentEnv(config)
    kind = type(made.taskset).task_type()
    if kind.toolsets(made.taskset.config.task) or type(made.taskset).toolsets(made.taskset.config):
        # The server of a tool is a program of this Python, and finds what this process imports.
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    if kind.NEEDS_CONTAINER:
        raise UnusableEnvironment(f"the tasks of environment {taskset!r} need a container")
    return made


class _Served:
    """An environment that is served by a task of its own, because what it opens has to be closed by the task
    that opened it.
    """

    def __init__(self, made: Any) -> None:
        self.environment, self.users = made, 0
        self._end = asyncio.Event()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Of no attempt: the first rollout's context is not that of the calls that the server takes.
        self.task = asyncio.create_task(self._serve(), context=contextvars.Context())

    async def _serve(self) -> None:
        try:
            async with self.environment.serving():
                self.ready.set_result(None)
                await self._end.wait()
        except BaseException as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)

    async def close(self) -> None:
        """Stop serving."""
        self._end.set()
        await self.task


_served: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Served]] = (
    weakref.WeakKeyDictionary()
)


@asynccontextmanager
async def served(taskset: str, arguments: Mapping[str, Any], max_turns: int) -> AsyncIterator[Any]:
    """Yield an environment that is served. Rollouts at the same time share it, and the last one closes it."""
    here = _served.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([taskset, arguments, max_turns], sort_keys=True)
    if key not in here:
        here[key] = _Served(environment(taskset, arguments, max_turns))
    one = here[key]
    one.users += 1
    try:
        await asyncio.shield(one.ready)
        yield one.environment
    finally:
        one.users -= 1
        if not one.users:
            here.pop(key, None)
            await asyncio.shield(one.close())


def loaded(taskset: str, arguments: Mapping[str, Any], limit: int) -> list[Any]:
    """Return the first ``limit`` tasks of a taskset (-1: all), loaded once."""
    key = (taskset, json.dumps([arguments, limit], sort_keys=True))
    with _lock:
        if key not in _tasks:
            found = environment(taskset, arguments, _DEFAULT_TURNS).taskset
            if limit < 0 and not found.bounded:
                raise UnusableEnvironment(f"environment {taskset!r} has tasks without end: give a limit")
            _tasks[key] = list(found if limit < 0 else found.take(limit))
        return _tasks[key]
