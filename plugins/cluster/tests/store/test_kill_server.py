"""A server killed with -9 under load and started again: clients notice nothing but the delay."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from pathlib import Path

import pytest
from contract.store import call, reward
from marks import sampled

from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus
from agl_cluster.store.client import StoreClient

SERVE = """
import asyncio, sys
from agl_cluster.store.server import serve
asyncio.run(serve(sys.argv[1], port=int(sys.argv[2]), ready=lambda url: print(url, flush=True)))
"""
LANES, CYCLES, KILLS = 6, 40, 4


async def serve(path: Path, port: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, str(path), str(port), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and await process.stdout.readline()
    return process


@pytest.mark.slow
@pytest.mark.parametrize("kills", sampled([1, KILLS], 0))
async def test_nothing_is_lost_and_nothing_is_doubled(tmp_path: Path, kills: int) -> None:
    path, rng = tmp_path / "s.sqlite", random.Random(4)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await serve(path, port)
    client = StoreClient(f"http://127.0.0.1:{port}")
    finished: list[str] = []
    kill_at = sorted(rng.sample(range(5, LANES * CYCLES - 20), kills))

    async def lane(name: str) -> None:
        for i in range(CYCLES):
            await client.enqueue_rollout([name, i], run_id=name)
            lease = await client.dequeue_rollout(name, run_id=name)
            assert lease is not None and lease.rollout.input == [name, i]
            await client.add_calls([call(lease)], fence=1)
            ids = lease.rollout.rollout_id, lease.attempt.attempt_id
            last = [reward(lease, float(i))]
            if i % 2:
                await client.count("made", "call")
                await client.update_attempt(*ids, AttemptStatus.SUCCEEDED, spans=last)
            else:
                end = {"rollout_id": ids[0], "attempt_id": ids[1], "status": "succeeded", "spans": last}
                made = ("count", {"kind": "made", "reason": "call"})
                assert not isinstance((await client.batch([made, ("update_attempt", end)]))[1], Exception)
            finished.append(ids[0])
            if kill_at and len(finished) >= kill_at[0]:
                kill_at.pop(0)
                await restart()

    async def restart() -> None:
        nonlocal process
        process.kill()
        await process.wait()
        process = await serve(path, port)

    await asyncio.gather(*(lane(f"r{n}") for n in range(LANES)))
    await client.close()
    process.terminate()
    assert await process.wait() == 0 and not kill_at
    store = SQLiteStore(path)
    records = await store.records(finished)
    assert len(set(finished)) == LANES * CYCLES
    assert {(r.rollout.status.value, r.rollout.attempts, len(r.calls), len(r.rewards)) for r in records} == {
        ("succeeded", 1, 1, 1)
    }
    statistics = await store.statistics()
    assert statistics["rollouts"] == {"succeeded": LANES * CYCLES} and statistics["calls"] == LANES * CYCLES
    assert await store.counts() == {"made": {"call": LANES * CYCLES}}
    await store.close()
