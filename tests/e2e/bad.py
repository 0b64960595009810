"""What the tests of bad input share: a driver without a network to train, around the real trainer.

Trainer, runner, gateway, store and credit are real. The policy is a :class:`ScriptedModelServer`, and the
driver collects and reports steps as every driver does, without a gradient.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import agl_gateway.plugin
import httpx
import openai
from agl_testing import ScriptedModelServer

import agl_audit.plugin
import agl_cluster.plugin
import agl_schedules.plugin
import agl_trackers.plugin
import agl_v03.plugin
from agentlightning import GRPO, LLM, Trainer
from agentlightning.credit import failure_of
from agentlightning.credit.digest import canonical_order, rows_digest
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import build
from agentlightning.specs import DriverSpec, Job
from agentlightning.train.trainer import algorithm_of
from agentlightning.types import Batch, Recipe, Record, StepReport

SUITE = (
    agl_audit.plugin,
    agl_cluster.plugin,
    agl_gateway.plugin,
    agl_schedules.plugin,
    agl_trackers.plugin,
    agl_v03.plugin,
)
LIMIT = 120.0
"""Seconds after which a test has hung."""
T = TypeVar("T")


class ScriptedDriver:
    """Serves ``server`` as the policy and makes steps without a gradient."""

    supported_fields = frozenset(Recipe.__struct_fields__)

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self.version = 0
        self.batches: list[Batch] = []
        self.reports: list[StepReport] = []
        self.update: Callable[[int], Awaitable[None]] = _nothing
        """What an update of that step is."""

    async def start(self) -> LLM:
        return LLM(endpoint=self.url, model=self.model)

    async def resume(self, folder: Path) -> tuple[int, dict[str, Any]]:
        file = folder / "finished.json"
        if not file.exists():
            return 0, {}
        finished: tuple[int, dict[str, Any]] = tuple(json.loads(file.read_text()))
        self.version = finished[0]
        return finished

    async def run(self, job: Job) -> None:
        for step in range(job.first_step, job.steps):
            batch = await job.collect(step)
            self.batches.append(batch)
            await self.update(step)
            self.version += 1
            report = StepReport(
                run_id=job.run_id,
                step=step,
                policy=job.policy,
                policy_version=self.version,
                metrics=dict(batch.metrics),
                rows_digest=rows_digest(canonical_order(batch.rows)),
            )
            self.reports.append(report)
            await job.report(report)
            await job.evaluate(step)
            (job.folder / "finished.json").write_text(json.dumps([step + 1, job.state()]))
            if job.steps <= step + 1:  # it may have fallen
                break

    async def export(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        return folder

    async def close(self) -> None:
        return None


async def _nothing(step: int) -> None:
    """An update that takes no time."""


class Line:
    """One run: ``server`` is the model; ``options`` go to the trainer. After :meth:`fit`: what there is of
    it.
    """

    def __init__(
        self, server: ScriptedModelServer | str, folder: Path, *listeners: Any, **options: Any
    ) -> None:
        url, model = (server, "gone") if isinstance(server, str) else (server.url, server.model)
        self.driver = ScriptedDriver(url, model)
        self.records: list[Record] = []
        driver = self.driver

        class Plugin:
            @hookimpl
            def agl_drivers(self) -> list[DriverSpec]:
                return [DriverSpec("scripted", lambda *_: driver, driver.supported_fields, ends_early=True)]

        given: dict[str, Any] = {
            "algorithm": GRPO(group_size=1, baseline="none", scale="none"),
            "policy": folder,
            "driver": "scripted",
            "steps": 1,
            "batch_size": 1,
            "concurrency": 64,
            "output": folder,
            "run": "r",
            "trackers": ["files"],
            "timeout_seconds": 300.0,
            **options,
        }
        self.trainer = Trainer(
            plugins=build([Plugin(), *SUITE, *listeners], discover=False),
            **given,
        )

    async def fit(self, agent: Any, tasks: list[Any], val: Sequence[Any] = ()) -> dict[str, Any]:
        """Train; what the store has of the run is in :attr:`records` afterwards, however it ended."""
        algorithm = algorithm_of(self.trainer.config, self.trainer.plugins, self.trainer)
        async with self.trainer.session(agent, tasks, val) as context:
            self.context = context
            try:
                result = await context.guard(algorithm.run(context))
            finally:
                rollouts = await context.store.query_rollouts(run_id=context.run_id)
                self.records = await context.store.records([r.rollout_id for r in rollouts])
            return {**result, "accounts": await context.accounts()}

    def by_task(self) -> dict[Any, Record]:
        """Task name → its record."""
        return {_name(record.rollout.input): record for record in self.records}

    def reasons(self) -> dict[Any, str | None]:
        """Task name → why its rollout failed, in the words of its last attempt."""
        return {name: record.attempt and record.attempt.reason for name, record in self.by_task().items()}

    def failures(self) -> Counter[str | None]:
        """Kind of failure → rollouts."""
        return Counter(failure_of(record) for record in self.records)

    def out(self) -> Counter[str]:
        """Why calls were left out, over all steps; the ledgers sum."""
        ledgers = [ledger for batch in self.driver.batches for ledger in batch.ledgers]
        assert all(ledger.sums for ledger in ledgers)
        return sum((Counter(ledger.left_out) for ledger in ledgers), Counter())

    @property
    def trained(self) -> set[str]:
        """Task names of the rollouts that have rows."""
        names = {record.rollout.rollout_id: _name(record.rollout.input) for record in self.records}
        return {names[row.rollout_id] for batch in self.driver.batches for row in batch.rows}


def _name(task: Any) -> Any:
    return task.get("do", task.get("q")) if isinstance(task, dict) else task


async def soon(work: Awaitable[T], seconds: float = LIMIT) -> T:
    """The result of what must not hang."""
    return await asyncio.wait_for(work, seconds)


async def ask(llm: LLM, text: str = "hello", **more: Any) -> Any:
    """One model call by the attempt's key, without the SDK's own retries; a stream is read to its end."""
    http = httpx.AsyncClient(verify=False)  # a client with certificates takes a while to make
    async with openai.AsyncOpenAI(
        base_url=llm.endpoint, api_key=llm.api_key, max_retries=0, http_client=http
    ) as client:
        messages: list[Any] = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(**{"model": llm.model, "messages": messages, **more})
        return [chunk async for chunk in answer] if more.get("stream") else answer
