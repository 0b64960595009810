"""Several gateway processes of one run over one store: what a call costs in each part.

    python bench/gateway.py --processes 1 2 3

The store is a process of its own (as `agl store` serves it), the run another, and each gateway its own; 16
clients in all, each attempt at its gateway. ``cpu_ms`` is the gateways' CPU a call, which stays the same if
they share nothing but the store; ``store_cpu_ms`` the store's, and ``run_cpu_ms`` the run's, which serves no
call. On a machine with fewer cores than processes the rate says nothing about more of them.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

CLIENTS = 16
ATTEMPTS = 64
SECRET = b"of-this-benchmark-and-no-other"
TOKEN = "the-token-of-this-benchmark"


async def serve_store(folder: str) -> None:
    """Serve a store until stdin closes."""
    from agl_cluster.store.server import start

    served = await start(Path(folder) / "store.sqlite", port=0, token=TOKEN)
    print(json.dumps({"url": served.url}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await served.close()


async def serve_run(engine: str, store_url: str, number: int) -> None:
    """Run ``number`` gateway processes; answer each line on stdin with counts and their ids."""
    from agentlightning.gateway import AttemptInfo, SamplingPolicy, Upstream
    from agentlightning.gateway.route import ranking
    from agentlightning.gateway.settings import CallSection, GatewaySection
    from agentlightning.keys import Keys
    from agl_cluster.gateways.main import Setup
    from agl_cluster.gateways.pool import GatewayProcesses
    from agl_cluster.store.client import StoreClient

    store, settings = StoreClient(store_url, TOKEN), GatewaySection()
    setup = Setup(
        secret=SECRET, shared=True, store=store_url, token=TOKEN, settings=settings, calls=CallSection(),
        asks=False, tells=False, whole=False,
    )  # fmt: skip
    pool = GatewayProcesses(store, Keys(SECRET), settings, number, pickle.dumps(setup))
    pool.add_route(Upstream(url=engine, model="bench", stream_ids=True))
    pool.policy_sampling("default", SamplingPolicy())
    await pool.start()
    await pool.settle()
    keys: dict[str, list[str]] = defaultdict(list)
    urls = tuple(pool.urls)
    for i in range(ATTEMPTS):
        lease = await store.start_rollout({"i": i}, worker_id="bench")
        info = AttemptInfo.of(lease.rollout, lease.attempt, {})
        keys[urls[ranking(info.attempt_id, urls)[0]]].append(pool.open_attempt(info))
    print(json.dumps({"keys": keys, "pids": pool.pids}), flush=True)
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        await pool.settle()
        print(json.dumps({"stored": pool.metrics.calls["ok"]}), flush=True)
    await pool.stop()
    await store.close()


def cpu(pids: list[int]) -> float:
    """CPU seconds that processes have used."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


def measure(numbers: list[int], seconds: float) -> dict[str, Any]:
    """Return what a call costs with each number of gateway processes."""
    from gateway import Child

    engine = Child("--role", "engine")
    try:
        return {str(number): one(engine.hello["url"], number, seconds) for number in numbers}
    finally:
        engine.process.terminate()
        engine.process.wait()


def one(engine: str, number: int, seconds: float) -> dict[str, Any]:
    """Measure one number of processes."""
    from gateway import Child, load

    async def all_at_once(keys: dict[str, list[str]], length: float) -> int:
        each = max(1, CLIENTS // len(keys))
        found = await asyncio.gather(*(load([url] * len(of), of, each, length) for url, of in keys.items()))
        return sum(one["calls"] for one in found)

    with tempfile.TemporaryDirectory() as folder:
        store = Child("store", folder, script=__file__)
        run = Child("run", engine, store.hello["url"], str(number), script=__file__)
        parts = {
            "cpu_ms": run.hello["pids"],
            "store_cpu_ms": [store.process.pid],
            "run_cpu_ms": [run.process.pid],
        }
        try:
            asyncio.run(all_at_once(run.hello["keys"], 0.5))
            stored = run.ask()["stored"]
            before = {name: cpu(pids) for name, pids in parts.items()}
            calls = asyncio.run(all_at_once(run.hello["keys"], seconds))
            after = {name: cpu(pids) for name, pids in parts.items()}
            stored = run.ask()["stored"] - stored
        finally:
            for child in (run, store):
                assert child.process.stdin
                child.process.stdin.close()
                child.process.wait()
    if stored != calls:
        raise SystemExit(f"{calls} calls were answered, {stored} recorded")
    costs = {name: round(1000 * (after[name] - before[name]) / calls, 3) for name in parts}
    return {"calls_per_s": round(calls / seconds), **costs, "calls": calls}


if __name__ == "__main__":
    _, role, *words = sys.argv
    if role == "store":
        asyncio.run(serve_store(words[0]))
    else:
        asyncio.run(serve_run(words[0], words[1], int(words[2])))
