"""A policy that is served and not trained; checkpoints of a driver that is one of several."""

from __future__ import annotations

import asyncio
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from marks import sampled

from agentlightning.types import UsageError
from agentlightning.types.work import PolicyFolder
from agl_local.generation.request import EngineError
from agl_local.http.process import EngineProcess
from agl_local.option_values import OptionError
from agl_local.plugin import agl_drivers, make_server
from agl_local.policy.checkpoint import CheckpointError, back_to, saved_steps
from agl_local.policy.folder import fingerprint
from agl_local.serving import LocalServer
from plugins.local.tests.driver_fixtures import saved_policy
from plugins.local.tests.test_driver_loop import PROMPT, FakeJob, post, started


@pytest.mark.parametrize("engine", sampled(["thread", "process"], 0))
async def test_it_is_served_as_it_is(tmp_path: Path, engine: str) -> None:
    policy = saved_policy(tmp_path / "policy")
    options = {"engine": engine, "threads": 1, "max_num_seqs": 2}
    server = make_server(PolicyFolder(policy, options=options, name="old"))
    llm = await server.start()
    try:
        assert llm.model == "old"
        with pytest.raises(RuntimeError, match="started or closed already"):
            await server.start()
        body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0.0, "seed": 1}
        first, second = [await asyncio.to_thread(post, llm, body) for _ in range(2)]
        assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
        assert first["policy_version"] == 0
    finally:
        await server.close()
        await server.close()


async def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no option 'slot'"):
        LocalServer(PolicyFolder(tmp_path, options={"slot": 1}, name="old"))
    thread = {"engine": "thread", "threads": 1}
    for folder, said in ((tmp_path / "none", "there is no such folder"), (tmp_path, r"config\.json")):
        server = LocalServer(PolicyFolder(folder, options=thread, name="old"))
        with pytest.raises(UsageError, match=said):
            await server.start()
        await server.close()


async def test_an_engine_that_fails_is_said_with_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: EngineProcess) -> str:
        raise EngineError("no room")

    monkeypatch.setattr(EngineProcess, "start", start)
    server = LocalServer(PolicyFolder(saved_policy(tmp_path / "policy"), options={"threads": 1}, name="old"))
    with pytest.raises(UsageError, match=r"policy 'old' .* cannot be served: no room"):
        await server.start()
    await server.close()


@pytest.mark.slow
async def test_a_foreign_model_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    """The engine's process loads transformers for it."""
    (saved_policy(tmp_path / "foreign") / "config.json").write_text('{"model_type": "gpt2"}')
    server = LocalServer(PolicyFolder(tmp_path / "foreign", options={"threads": 1}, name="old"))
    with pytest.raises(UsageError, match=r"policy 'old' .* cannot be served"):
        await server.start()
    await server.close()


@pytest.mark.slow
async def test_a_start_that_is_given_up_leaves_no_process(tmp_path: Path, greeted: Queue[Any]) -> None:
    server = LocalServer(PolicyFolder(saved_policy(tmp_path / "policy"), options={"threads": 1}, name="old"))
    start = asyncio.create_task(server.start())
    process = await asyncio.to_thread(greeted.get, timeout=300)
    start.cancel()
    await asyncio.wait([start])
    await server.close()
    assert process.poll() is not None


async def test_a_driver_goes_back_to_a_step_and_forgets_what_came_after(tmp_path: Path) -> None:
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, save_every=1, keep_checkpoints=3)
    try:
        job = FakeJob(driver, llm, tmp_path, steps=3)
        await driver.run(job)
        digests = [report.params_digest for report in job.reports]
    finally:
        await driver.close()
    assert agl_drivers()[0].together is not None
    again, _ = await started(policy, save_every=1, keep_checkpoints=3)
    try:
        assert await again.checkpoints(tmp_path) == [1, 2, 3]
        assert (await again.resume(tmp_path, 2))[0] == 2
        assert again.version == 2 and fingerprint(again._loaded().model) == digests[1]
        assert await again.checkpoints(tmp_path) == [1, 2]
        assert await again.resume(tmp_path, 0) == (0, {}) and await again.checkpoints(tmp_path) == []
    finally:
        await again.close()


async def test_superfluous_checkpoints_go_when_the_job_knows_of_the_new_one(tmp_path: Path) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"), save_every=1, keep_checkpoints=1)
    there: list[list[int]] = []

    class Job(FakeJob):
        async def saved(self, folder: Path, step: int) -> None:
            there.append(saved_steps(folder.parent))

    try:
        await driver.run(Job(driver, llm, tmp_path, steps=3))
    finally:
        await driver.close()
    assert there == [[1], [1, 2], [2, 3]] and saved_steps(tmp_path / "checkpoints") == [3]


def test_nothing_is_removed_before_the_checkpoint_is_known_to_be_whole(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"step-{step:06d}").mkdir()
    with pytest.raises(CheckpointError, match=r"step-000002 is no checkpoint"):
        back_to(tmp_path, 2)
    assert saved_steps(tmp_path) == [1, 2, 3]
    assert back_to(tmp_path, 0) is None and saved_steps(tmp_path) == []
