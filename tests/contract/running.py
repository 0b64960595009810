"""A runner that works beside a test; a rollout whose calls reach a model server through a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agentlightning.capture.installation import capturing
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import Store
from agentlightning.types import LLM, Record, Rollout, RolloutConfig


@asynccontextmanager
async def serving(agent: Any, store: Store, **options: Any) -> AsyncIterator[Runner]:
    """A runner that takes rollouts within the block. ``options``: fields of it, and of its settings."""
    settings = {name: options.pop(name) for name in [*options] if name in RunnerSection.model_fields}
    runner = Runner(agent, store, RunnerSection(**{"timeout_seconds": None, **settings}), **options)
    async with at_work(runner):
        yield runner


@asynccontextmanager
async def at_work(runner: Any) -> AsyncIterator[None]:
    """A runner takes rollouts within the block, and has stopped behind it."""
    stop = asyncio.Event()
    task = asyncio.create_task(runner.serve(stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 300)


async def finish(store: Store, tasks: list[Any], **fields: Any) -> list[Rollout]:
    """One rollout of each task, when all have ended."""
    rollouts = [await store.enqueue_rollout(task, **fields) for task in tasks]
    done = await store.wait_for_rollouts([r.rollout_id for r in rollouts], timeout=300)
    assert len(done) == len(tasks)
    return done


async def reason(store: Store, rollout: Rollout) -> str:
    """Why the rollout's last attempt ended as it did."""
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    return attempt.reason or ""


async def rolled_out(
    agent: Any, task: Any, store: Store, engine: Any, **route: Any
) -> tuple[Rollout, Record, str]:
    """One attempt at a task, its record, and why it failed. ``engine``: the model server of ``policy``;
    ``route``: more fields of its ``Upstream``.
    """
    gateway = Gateway(store, Keys())
    gateway.add_route(Upstream(policy="policy", url=engine.url, model=engine.model, **route))
    await gateway.start()
    try:
        resources = await store.add_resources({"llm": LLM(endpoint=gateway.url, model="policy")})
        with capturing([]):
            async with serving(agent, store, attempt_keys=gateway):
                once = RolloutConfig(max_attempts=1)
                [rollout] = await finish(store, [task], resources_id=resources.resources_id, config=once)
        [record] = await store.records([rollout.rollout_id])
        return rollout, record, await reason(store, rollout)
    finally:
        await gateway.stop()
