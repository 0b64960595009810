"""The calc_x agent; one rollout in a group misbehaves, in every way in turn. Evaluated, it is healthy.

How a rollout misbehaves is a function of its place in the data. The agent keeps a record of its own, in the
file that ``AGL_HOSTILE_WITNESS`` names: a line for each model call that was answered, written by the HTTP
client and not by ours, and one for each misdeed. The benchmark compares it with what the run explains.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import httpx
from hostile_agents.vices import VICES
from openai import DefaultAsyncHttpxClient

from agentlightning import LLM
from agentlightning.capture.context import current_attempt
from agentlightning.types import Rollout
from calc_x import agent as healthy

WITNESS = "AGL_HOSTILE_WITNESS"
MOST = "AGL_HOSTILE_MOST"
"""How many rollouts misbehave."""


async def solve(task: Mapping[str, Any], llm: LLM, rollout: Rollout) -> Any:
    """Answer as calc_x does; then misbehave, if it is this rollout's turn."""
    reward = await healthy.solve(task, llm)
    name = vice_of(rollout)
    if name is None:
        return reward
    note("misdeed", rollout.rollout_id, name)
    return await VICES[name].act(llm, rollout)


def vice_of(rollout: Rollout) -> str | None:
    """How this rollout misbehaves; ``None``: it does not. In evaluation none does."""
    if rollout.mode != "train" or rollout.sample:
        return None
    index = find_segment(rollout)
    names = list(VICES)
    return names[index % len(names)] if index < int(os.environ.get(MOST, "300")) else None


def find_segment(rollout: Rollout) -> int:
    """The number of the rollout's group in the run, at eight tasks a step (``…/train/<step>/<task>``)."""
    *_, step, task = (rollout.group_id or "").split("/")
    return int(step) * 8 + int(task)


def note(what: str, rollout_id: str, text: str) -> None:
    """Append a line to the agent's own record; one write, so that processes do not mix theirs."""
    if WITNESS in os.environ:
        line = json.dumps([what, rollout_id, text]) + "\n"
        file = os.open(os.environ[WITNESS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def witnessed(client: type[Any]) -> None:
    """Note what clients of this class are answered."""
    send = client.send

    async def noted(self: Any, request: Any, **options: Any) -> Any:
        response = await send(self, request, **options)
        context = current_attempt()
        called = str(request.url).endswith("/chat/completions") and response.status_code == 200
        if context is not None and called:
            note("answered", context.rollout_id, str(request.url))
        return response

    client.send = noted  # type: ignore[attr-defined]


def watch() -> None:
    """Note what this process's clients are answered. The openai SDK's is of httpx or of its successor, the
    vices' own of httpx.
    """
    for client in {next(c for c in DefaultAsyncHttpxClient.__mro__ if "send" in vars(c)), httpx.AsyncClient}:
        witnessed(client)


if WITNESS in os.environ:  # a worker process of the benchmark
    watch()
