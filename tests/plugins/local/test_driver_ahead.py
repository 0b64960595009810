"""Calls that are under way when new weights come: the version of each token, and what the answer says."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plugins.local.driver_fixtures import saved_policy
from plugins.local.test_driver_loop import PROMPT, RECIPE, FakeJob, post

from agentlightning.types import LLM, Batch
from agentlightning.types.work import PolicyFolder
from agl_local.driver import LocalDriver
from agl_local.generation.engine import Engine

LONG = 40


class Straddled(FakeJob):
    """In its first step a long call begins, which stands at its first token until new weights are ordered."""

    def __init__(self, driver: LocalDriver, llm: LLM, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(driver, llm, folder, 1)
        self.recipe = driver.recipe
        self.begun, self.ordered = threading.Event(), threading.Event()
        append, order = Engine._append, Engine._order
        job = self

        def held(engine: Engine, sample: Any, *args: Any) -> None:
            append(engine, sample, *args)
            if sample.limit == LONG and len(sample.tokens) == 1:
                job.begun.set()
                assert job.ordered.wait(300)

        def told(engine: Engine, given: Any) -> Any:
            done = order(engine, given)
            job.ordered.set()
            return done

        patch.setattr(Engine, "_append", held)
        patch.setattr(Engine, "_order", told)
        self.call: asyncio.Task[dict[str, Any]] | None = None

    async def collect(self, step: int) -> Batch:
        batch = await super().collect(step)
        body = {"prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True, "seed": 1, "temperature": 1.0}
        self.call = asyncio.create_task(asyncio.to_thread(post, self.llm, body))
        assert await asyncio.to_thread(self.begun.wait, 20)
        return batch


@pytest.mark.parametrize(
    ("staleness", "versions"), [(0, [0] * LONG), (1, [0] + [1] * (LONG - 1))], ids=["drain", "hold"]
)
async def test_a_call_that_straddles_an_update(
    staleness: int, versions: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where tokens may be stale, the answer goes on with the new weights, and counts as the older version."""
    recipe = msgspec.structs.replace(RECIPE, max_staleness=staleness)
    options = {"engine": "thread", "threads": 1, "lr": 1e-2, "save_every": 0}
    driver = LocalDriver(
        PolicyFolder(saved_policy(tmp_path / "policy"), options=options, name="tiny"), recipe
    )
    llm = await driver.start()
    try:
        job = Straddled(driver, llm, tmp_path, monkeypatch)
        await asyncio.wait_for(driver.run(job), 300)
        assert driver.version == 1 and job.call is not None
        answer = await job.call
        [choice] = answer["choices"]
        assert choice.get("policy_versions", [answer["policy_version"]] * LONG) == versions
        assert answer["policy_version"] == min(versions) and len(choice["token_ids"]) == LONG
    finally:
        await driver.close()
