"""A search that is killed goes on from the store: nothing is scored twice, nothing is asked twice."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from marks import sampled

from agl_apo.beam import APO

from .conftest import World
from .test_beam import SMALL

SCRIPT = Path(__file__).parent / "searching.py"
ROOT = Path(__file__).parents[3]
MODULES = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}


async def run(world: World, *more: str, kill_after: int | None = None) -> dict | None:
    """Run the search in a process; kill it with SIGKILL once so many requests have reached the servers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), str(world.folder), world.model.url, world.served.url, *more,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "AGL_PLUGINS": "", **MODULES},
    )  # fmt: skip
    reading = asyncio.ensure_future(process.communicate())
    while not reading.done():
        if kill_after is not None and len(world.model.log) + len(world.served.log) >= kill_after:
            process.kill()
            break
        await asyncio.sleep(0.005)
    out, _ = await reading
    return json.loads(out) if kill_after is None else None


@pytest.mark.parametrize("kill_after", sampled([31, 5, 10, 25, 45, 60], 0))
async def test_after_kill_9_the_search_goes_on(world: World, kill_after: int) -> None:
    await run(world, kill_after=kill_after)
    made = len(world.model.log) + len(world.served.log)
    summary = await run(world, "--resume")
    assert summary is not None
    assert (summary["reward_before"], summary["reward_after"]) == (0.0, 1.0)
    assert summary["reused"]["rollouts"] + summary["reused"]["requests"] > 0 or made < 9
    async with world.stored() as store:
        rollouts = await store.query_rollouts(run_id="search")
        scored = [
            (r.metadata["candidate"], r.metadata["split"], r.task_id)
            for r in rollouts
            if "candidate" in r.metadata
        ]
        assert len(scored) == len(set(scored))
        for one in rollouts:
            calls = [call for call in await store.query_calls(one.rollout_id, None) if call.status == "ok"]
            assert len(calls) == 1 or len(await store.query_attempts(one.rollout_id)) == len(calls)
        spent = sum([len(await store.query_calls(one.rollout_id, None)) for one in rollouts])
    assert summary["spent"]["calls"] == spent


@pytest.mark.slow
async def test_a_finished_search_resumes_with_more_rounds(world: World) -> None:
    first = await world.fit(APO(critic=world.critic, **{**SMALL, "beam_rounds": 2}))
    made = len(world.model.log), len(world.served.log)
    again = await world.fit(APO(critic=world.critic, **{**SMALL, "beam_rounds": 2}), resume=True)
    assert (len(world.model.log), len(world.served.log)) == made, "not one call is made again"
    assert again["winner"] == first["winner"] and again["spent"]["calls"] == sum(made)
    more = await world.fit(APO(critic=world.critic, **SMALL), resume=True)
    assert more["reward_after"] == 1.0 > first["reward_after"]
