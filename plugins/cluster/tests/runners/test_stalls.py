"""A stall of runner or store in a process of its own costs no attempt; the dead are found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract.running import serving
from core.runner.test_stalls import ATTEMPTS, SILENCE, STALL, enqueue, running, sleeps, survivors

from agentlightning.store import SQLiteStore
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(tmp_path / "s.sqlite")
    yield opened
    await opened.close()


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


@pytest.mark.slow
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


@pytest.mark.slow
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
