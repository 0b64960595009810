"""Runs a command as the agent of one rollout, before a real gateway and a scripted model server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agl_programs.commands.agent import CommandAgent
from agl_testing import ScriptedModelServer

from agentlightning.credit.verdicts import verdicts
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore
from agentlightning.types import Attempt, ProxyLLM, Record, Reward, Rollout, Span

ASK = """
import json, os, sys, urllib.request
def ask(text="hi", path="/chat/completions", **more):
    messages = {} if "input" in more else {"messages": [{"role": "user", "content": text}]}
    body = {"model": "any", **messages, **more}
    url, key = os.environ["OPENAI_BASE_URL"] + path, os.environ["OPENAI_API_KEY"]
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request).read().decode()
"""
"""The beginning of a Python program that calls a model without an SDK."""


def python(source: str, *args: str) -> list[str]:
    """A command that runs Python source."""
    return [sys.executable, "-c", source, *args]


@dataclass
class Ran:
    """What one rollout recorded."""

    rollout: Rollout
    attempt: Attempt
    record: Record
    spans: list[Span]

    @property
    def kinds(self) -> list[str]:
        return [verdict.kind for verdict in verdicts(self.record).values()]

    @property
    def rewards(self) -> list[Reward]:
        return list(self.record.rewards)

    @property
    def command(self) -> dict[str, Any]:
        """The attributes of the command's span."""
        (span,) = [span for span in self.spans if span.name == "agentlightning.command"]
        return span.attributes


class Bench:
    """A store and a gateway, for rollouts one after another."""

    def __init__(self, store: SQLiteStore, gateway: Gateway, resources_id: str) -> None:
        self.store, self.gateway, self.resources_id = store, gateway, resources_id

    def runner(self, command: Any, timeout: float | None = None, **options: Any) -> Runner:
        agent = command if isinstance(command, CommandAgent) else CommandAgent(command, **options)
        return Runner(agent, self.store, RunnerSection(timeout_seconds=timeout), attempt_keys=self.gateway)

    async def run(self, command: Any, task: Any = None, timeout: float | None = 120.0, **options: Any) -> Ran:
        rollout = await self.runner(command, timeout, **options).step(task, self.resources_id)
        (record,) = await self.store.records([rollout.rollout_id])
        (attempt,) = await self.store.query_attempts(rollout.rollout_id)
        return Ran(rollout, attempt, record, list(await self.store.query_spans(rollout.rollout_id)))


@asynccontextmanager
async def bench(server: ScriptedModelServer | None = None) -> AsyncIterator[Bench]:
    """A bench before ``server``."""
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, Keys(b"0123456789abcdef"))
    await gateway.start()
    if server is not None:
        gateway.add_route(Upstream(policy="policy", url=server.url, model=server.model))
    published = await store.add_resources({"policy": ProxyLLM(endpoint=gateway.url, model="policy")})
    try:
        yield Bench(store, gateway, published.resources_id)
    finally:
        await gateway.stop()
        await store.close()


async def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
