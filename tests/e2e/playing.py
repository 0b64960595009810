"""What the tests of rolling out ahead and of refilling share: an agent that asks once, and runs of it.

The driver takes a step without a gradient; what its update waits for is what a test wants to see happen
beside it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from agl_testing import ScriptedModelServer
from core.runner.across import Event
from e2e.bad import Line
from openai import AsyncOpenAI

from agentlightning import GRPO, LLM, Rollout
from agentlightning.algorithms.queue import Prefetcher
from agentlightning.store import SQLiteStore
from agl_audit.locations import RunLocation
from agl_audit.run import run_in
from agl_audit.verification.verify import verify

TASKS = list(range(20))
SIZE = 4
"""Rollouts of a step: two tasks, two samples."""


class Broke(Exception):
    """What ends a run half-way."""


class Play:
    """An agent that asks once. It knows of which step each of its rollouts is, and what was served then."""

    def __init__(self, line: Line, act: Callable[[int, Rollout], Awaitable[float]] | None = None) -> None:
        self.line, self.act = line, act
        self.ended: dict[int, list[str]] = defaultdict(list)
        self.versions: dict[int, set[int]] = defaultdict(set)
        self.changed = Event()

    async def run(self, task: int, llm: LLM, rollout: Rollout) -> float:
        step = step_of(rollout)
        self.versions[step].add(self.line.driver.version)
        http = httpx.AsyncClient(verify=False)  # no certificates to read: it is loopback, and there are many
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, http_client=http) as client:
            await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": f"step {step}: {task}"}], max_tokens=4
            )
        reward = await self.act(step, rollout) if self.act else float(rollout.sample)
        self.ended[step].append(rollout.rollout_id)
        self.changed.set()
        return reward

    async def until(self, step: int, count: int = SIZE) -> None:
        """Wait until so many rollouts of a step have ended; a run that does not let them hangs."""
        while len(self.ended[step]) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)
        await self.line.context.store.wait_for_rollouts(self.ended[step], 20)


def step_of(rollout: Rollout) -> int:
    """The step that a rollout belongs to; -1: to none."""
    name = (rollout.group_id or "").split("/")
    return int(name[2].split("+")[0]) if name[1] == "train" else -1


def recipe(staleness: int, **fields: Any) -> Any:
    return GRPO(group_size=2, max_staleness=staleness, importance_cap=2.0, **fields)


def line(server: ScriptedModelServer, folder: Path, ahead: int, *listeners: object, **options: Any) -> Line:
    given = {"algorithm": recipe(ahead), "steps": 4, "batch_size": 2, "async_steps": ahead, **options}
    return Line(server, folder, *listeners, **given)


def plan(made: Line) -> dict[str, Any]:
    """What was asked, in which step, with which seed."""
    return {r.rollout.rollout_id: (r.rollout.input, r.rollout.seed) for r in made.records}


async def equal(folder: Path) -> bool:
    """``agl verify`` of the run."""
    store = SQLiteStore(folder / "r" / "store.sqlite")
    try:
        return (await verify(await run_in(store, RunLocation(str(store), folder / "r", "r")))).equal
    finally:
        await store.close()


async def break_off(made: Line, play: Play, *data: Any) -> None:
    """Run until the driver raises :class:`Broke`, and leave what is under way as a SIGKILL would."""

    async def nothing(self: Prefetcher) -> int:
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prefetcher, "end", nothing)
        with pytest.raises(Broke):
            await made.fit(play, *data)
