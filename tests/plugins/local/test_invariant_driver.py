"""A whole run in deterministic mode: digests per step do not depend on concurrency, order or a resume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from marks import sampled
from plugins.local.driver_fixtures import saved_policy
from plugins.local.test_driver_loop import PROMPT, RECIPE, FakeJob, post

from agentlightning.types import Batch
from agentlightning.types.work import PolicyFolder
from agl_local.driver import LocalDriver

OPTIONS = {"deterministic": True, "lr": 1e-2, "threads": 1, "save_every": 1, "engine": "thread"}


class Agents(FakeJob):
    """16 agents a step, each with a prompt and a seed of its own, ``concurrency`` of them at a time."""

    concurrency = 1

    def state(self) -> dict[str, Any]:
        return {}

    async def collect(self, step: int) -> Batch:
        gate = asyncio.Semaphore(self.concurrency)

        async def one(i: int) -> dict[str, Any]:
            body = {"prompt": [*PROMPT, 5 + i % 4], "max_tokens": 3 + i % 5, "seed": 100 * step + i}
            async with gate:
                answer = await asyncio.to_thread(post, self.llm, body)
            return {**answer["choices"][0], "i": i}

        order = range(16) if self.concurrency == 1 else range(15, -1, -1)
        rows = []
        for done in asyncio.as_completed([one(i) for i in order]):
            choice = await done
            advantage = (-1.0) ** choice["i"] * (1 + choice["i"] / 7)
            rows.append(self.row(step, choice["i"], choice, advantage))
        return Batch(rows=rows, metrics={})


async def digests(
    policy: Path, folder: Path, steps: int, concurrency: int, **options: Any
) -> list[tuple[str, str | None]]:
    """Of each step that this process made: a run that is in ``folder`` already goes on."""
    driver = LocalDriver(PolicyFolder(policy, options={**OPTIONS, **options}, name="tiny"), RECIPE)
    llm = await driver.start()
    try:
        first, _ = await driver.resume(folder)
        job = Agents(driver, llm, folder, steps, first=first, guided=False)
        job.concurrency = concurrency
        await driver.run(job)
    finally:
        await driver.close()
    return [(report.rows_digest, report.params_digest) for report in job.reports]


@pytest.mark.parametrize("engine", sampled(["thread", "process"], 0))
async def test_concurrency_order_and_resume_change_no_digest(tmp_path: Path, engine: str) -> None:
    policy = saved_policy(tmp_path / "policy")
    straight = await digests(policy, tmp_path / "a", 3, 1, max_num_seqs=2, engine=engine)
    assert len(set(straight)) == 3 and all(params for _, params in straight)
    assert await digests(policy, tmp_path / "b", 3, 16, engine=engine) == straight
    first = await digests(policy, tmp_path / "c", 2, 16, max_num_seqs=4, engine=engine)
    rest = await digests(policy, tmp_path / "c", 3, 5, max_num_seqs=8, engine=engine)
    assert (len(first), len(rest)) == (2, 1) and first + rest == straight
