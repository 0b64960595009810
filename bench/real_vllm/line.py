"""Store, gateway and runner before a vLLM, as in a training run; and the swap of its weights under them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl_gateway.edits.section import RouteSection
from engine import NAME, VLLM

import agentlightning as agl
from agentlightning.capture.installation import capturing
from agentlightning.gateway import Gateway, SamplingPolicy, Upstream
from agentlightning.keys import Keys
from agentlightning.plugins.manager import Plugins, load
from agentlightning.runner.agent import instrumentors
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore
from agentlightning.types import Mode, Record

PATIENCE = 120.0
"""Seconds a call may take until it is where the swap wants it."""


@dataclass
class Line:
    """Everything between an agent and vLLM. ``version``: of the weights that vLLM serves."""

    engine: VLLM
    store: SQLiteStore
    gateway: Gateway
    plugins: Plugins
    resources_id: str
    version: int = 1

    def route(self, **settings: Any) -> None:
        """Put vLLM behind the policy's name; ``settings`` of the route as in :class:`RouteSection`."""
        self.gateway.add_route(
            Upstream(
                policy=NAME,
                url=self.engine.url,
                model=NAME,
                version=lambda: self.version,
                settings=RouteSection(**settings),
            )
        )

    async def roll_out(self, agent: Any, task: Any, *, mode: Mode = "train", seed: int = 1) -> Record:
        """Run one task by the runner; its record. RuntimeError with the reason if the attempt failed."""
        rollout = await self.store.enqueue_rollout(task, mode, self.resources_id, seed=seed)
        runner = Runner(
            agent,
            self.store,
            RunnerSection(concurrency=1, timeout_seconds=240.0),
            attempt_keys=self.gateway,
            plugins=self.plugins,
        )
        await runner.serve(limit=1)
        (record,) = await self.store.records([rollout.rollout_id])
        attempt = record.attempt
        if attempt is None or attempt.status != "succeeded":
            raise RuntimeError(
                f"{task}: {attempt.status if attempt else 'no attempt'}: {attempt and attempt.reason}"
            )
        return record

    async def figure(self, name: str) -> Any:
        """One of the gateway's metrics."""
        metrics = await self.engine.get("/metrics", self.gateway.url.removesuffix("/v1"))
        return metrics[name]

    async def until(self, name: str, count: int) -> None:
        """Wait until a metric of the gateway is at least ``count``."""
        async with asyncio.timeout(PATIENCE):
            while await self.figure(name) < count:
                await asyncio.sleep(0.02)

    async def swap(self, weights: Path, holding: int) -> dict[str, Any]:
        """Load other weights as the next version: hold new calls, let those at vLLM end, load, let go on.

        It does not go on before ``holding`` calls are held, so that there are some.
        """
        await self.gateway.hold()
        under_way = await self.figure("in_flight")
        if not await self.gateway.drain(PATIENCE):
            raise RuntimeError(f"calls were at vLLM for {PATIENCE:.0f} s after the gate was closed")
        seconds = await self.engine.reload(weights)
        await self.until("waiting", holding)
        self.version += 1
        await self.gateway.release()
        return {"under_way": under_way, "held": holding, "reload_seconds": round(seconds, 3)}


@asynccontextmanager
async def line(engine: VLLM, folder: Path) -> AsyncIterator[Line]:
    """A line with capture switched on, and a store in ``folder``."""
    store = SQLiteStore(folder / "store.sqlite")
    gateway = Gateway(store, Keys())
    gateway.policy_sampling(NAME, SamplingPolicy())
    url = await gateway.start()
    plugins = load()
    llm = agl.ProxyLLM(endpoint=url, model=NAME)
    resources = await store.add_resources({"llm": llm})
    made = Line(engine, store, gateway, plugins, resources.resources_id)
    made.route()
    try:
        with capturing(instrumentors(plugins, ("langgraph", "autogen"))):
            yield made
    finally:
        await gateway.stop()
        await store.close()
