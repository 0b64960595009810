"""What a rollout costs besides its agent: an agent that does nothing, in one process and over a store server.

    python bench/rollouts.py                 # 60 s each
    python bench/rollouts.py --seconds 3

``noop_ms``: one rollout at a time, from ``enqueue_rollout`` until its end can be read (median and 99th
percentile). ``in_process``: a runner with 64 places beside its store. ``http``: the store's server in one
process and two runners of 64 places in two others, without the gateway. Rollouts are queued 256 ahead; each
is a lease, an attempt, a returned reward and a committed end. A rollout that failed or is missing ends the
run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore, Store
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import serve

PLACES, AHEAD, BATCH = 64, 256, 64
SINGLE = 300
"""Rollouts of the first figure."""


async def agent(task: int) -> float:
    """Do nothing, well."""
    return 1.0


async def serving(store: Store, stop: asyncio.Event, places: int) -> None:
    await Runner(agent, store, RunnerSection(concurrency=places, timeout_seconds=None)).serve(stop)


async def single(folder: Path) -> dict[str, float]:
    """One rollout after the other; milliseconds each."""
    store, stop, times = SQLiteStore(folder / "single.sqlite"), asyncio.Event(), []
    runner = asyncio.create_task(serving(store, stop, 1))
    for n in range(SINGLE + 20):
        began = time.perf_counter()
        rollout = await store.enqueue_rollout(n)
        [done] = await store.wait_for_rollouts([rollout.rollout_id], timeout=30)
        assert done.status == "succeeded", done
        times.append(1000 * (time.perf_counter() - began))
    stop.set()
    await runner
    await store.close()
    times = sorted(times[20:])
    return {"p50": round(statistics.median(times), 2), "p99": round(times[int(0.99 * len(times))], 2)}


async def sustained(store: Store, seconds: float) -> dict[str, Any]:
    """Keep the queue filled for so long; rollouts a second, all of which must have succeeded."""
    queued: list[str] = []
    done = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or queued:
        while len(queued) < AHEAD and time.perf_counter() - began < seconds:
            added = await asyncio.gather(*(store.enqueue_rollout(n) for n in range(BATCH)))
            queued += [rollout.rollout_id for rollout in added]
        waited, queued = queued[:BATCH], queued[BATCH:]
        ended = await store.wait_for_rollouts(waited, timeout=60)
        assert {rollout.status for rollout in ended} == {"succeeded"}, [r.status for r in ended]
        done += len(ended)
    took = time.perf_counter() - began
    counted = (await store.statistics())["rollouts"]
    assert counted == {"succeeded": done}, (counted, done)
    return {"rollouts": done, "per_s": round(done / took), "seconds": round(took, 1)}


async def in_process(folder: Path, seconds: float) -> dict[str, Any]:
    """Runner and store on one event loop."""
    store, stop = SQLiteStore(folder / "inside.sqlite"), asyncio.Event()
    runner = asyncio.create_task(serving(store, stop, PLACES))
    try:
        return await sustained(store, seconds)
    finally:
        stop.set()
        await runner
        await store.close()


def serve_store(path: str, pipe: Any) -> None:
    """The store's process."""
    asyncio.run(serve(path, port=0, ready=pipe.send))


def serve_runner(url: str, over: Any) -> None:
    """A runner's process; it ends with ``over``."""

    async def run() -> None:
        store, stop = StoreClient(url), asyncio.Event()
        asyncio.get_running_loop().run_in_executor(None, over.wait).add_done_callback(lambda _: stop.set())
        await serving(store, stop, PLACES)
        await store.close()

    asyncio.run(run())


def over_http(folder: Path, seconds: float) -> dict[str, Any]:
    """A store server and two runners, each a process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    over = context.Event()
    server = context.Process(target=serve_store, args=(str(folder / "served.sqlite"), there))
    server.start()
    url = here.recv()
    runners = [context.Process(target=serve_runner, args=(url, over)) for _ in range(2)]
    for runner in runners:
        runner.start()

    async def run() -> dict[str, Any]:
        store = StoreClient(url)
        try:
            return await sustained(store, seconds)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    finally:
        over.set()
        for runner in runners:
            runner.join()
        server.terminate()
        server.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a rollout costs besides its agent.")
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, Any] = {"noop_ms": asyncio.run(single(folder))}
        print(json.dumps(found), file=sys.stderr)
        found["in_process"] = asyncio.run(in_process(folder, seconds))
        print(json.dumps(found), file=sys.stderr)
        found["http"] = over_http(folder, seconds)
    print(json.dumps({**found, "load_average": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
