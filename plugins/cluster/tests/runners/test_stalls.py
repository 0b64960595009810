"""A stall of runner or store in a process of its own costs no attempt; the dead are found."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from core.runner.test_runner import serving

from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Rollout, RolloutConfig, RolloutStatus
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start

SILENCE = 0.6


STALL = 5 * SILENCE
"""Seconds that the loop is blocked: several times the silence that ends an attempt."""


ATTEMPTS = 8


CONFIG = RolloutConfig(
    unresponsive_seconds=SILENCE, max_attempts=2, retry_condition=[AttemptStatus.UNRESPONSIVE]
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(tmp_path / "s.sqlite")
    yield opened
    await opened.close()


async def enqueue(store: Any, seconds: float) -> list[Rollout]:
    return [await store.enqueue_rollout(seconds, config=CONFIG) for _ in range(ATTEMPTS)]


async def running(store: Any, rollouts: list[Rollout]) -> None:
    ids = [rollout.rollout_id for rollout in rollouts]
    while any(r.status is not RolloutStatus.RUNNING for r in await store.query_rollouts(rollout_ids=ids)):
        await asyncio.sleep(0.02)


async def sleeps(task: float) -> float:
    await asyncio.sleep(task)
    return 1.0


async def survivors(store: Any, rollouts: list[Rollout]) -> int:
    """Rollouts that succeeded at their first attempt."""
    done = await store.wait_for_rollouts([rollout.rollout_id for rollout in rollouts], timeout=300)
    return sum(r.status is RolloutStatus.SUCCEEDED and r.attempts == 1 for r in done)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a store in a process of its own."""
    script = """
        import asyncio, sys
        from agentlightning.store import SQLiteStore
        from agl_cluster.store.server import start

        async def main():
            served = await start(SQLiteStore(sys.argv[1]), port=0)
            print(served.url, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "remote.sqlite")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_stall_of_the_runner_costs_no_attempt_of_a_store_in_another_process(remote: str) -> None:
    """The store is awake all the while, so only heartbeats from another thread keep the leases."""
    client = StoreClient(remote)
    rollouts = await enqueue(client, STALL + 2 * SILENCE)
    async with serving(sleeps, client, heartbeat=0.1):
        await running(client, rollouts)
        time.sleep(STALL)
        assert await survivors(client, rollouts) == ATTEMPTS
    await client.close()


RUNNER = """
    import asyncio, sys
    from agentlightning.runner.runner import Runner
    from agentlightning.runner.settings import RunnerSection
    from agl_cluster.store.client import StoreClient

    async def agent(task):
        await asyncio.sleep(task)
        return 1.0

    settings = RunnerSection(timeout_seconds=None, concurrency=8)
    asyncio.run(Runner(agent, StoreClient(sys.argv[1]), settings, heartbeat=0.1).serve())
"""


async def test_a_stall_of_the_store_costs_no_attempt_of_a_runner_in_another_process(
    store: SQLiteStore,
) -> None:
    """And a runner that was killed is found although the store has slept."""
    served = await start(store, port=0)
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(RUNNER), served.url])
    try:
        rollouts = await enqueue(store, STALL + 2 * SILENCE)
        await running(store, rollouts)
        time.sleep(STALL)
        assert await survivors(store, rollouts) == ATTEMPTS
        lost = await enqueue(store, 3600.0)
        await running(store, lost)
        os.kill(runner.pid, signal.SIGKILL)
        time.sleep(STALL)
        found = [await store.dequeue_rollout("another", wait=60.0) for _ in lost]
        assert {one.rollout.rollout_id for one in found if one} == {one.rollout_id for one in lost}
        assert all(one and one.attempt.sequence_id == 2 for one in found)
    finally:
        runner.kill()
        runner.wait()
        await served.close()
