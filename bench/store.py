"""What the store costs: bytes per call, spans, leases and full cycles over HTTP per second, all durable.

    python bench/store.py [--seconds 5]

Prints one JSON line. Rates are of one store on one event loop; the HTTP server runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentlightning import semconv
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptedRollout, AttemptStatus, Call, Rollout, Span
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import serve

VOCABULARY = 151_000
LANES = 64
"""Concurrent connections of the HTTP figures."""


def words(rng: random.Random, size: int) -> str:
    """Random words, ``size`` bytes: text that compresses as prose does at best."""
    out = "".join(
        "".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(2, 9))) + " " for _ in range(size // 4)
    )
    return out[:size]


def a_call(rng: random.Random, lease: AttemptedRollout, sequence: int) -> Call:
    """300 prompt tokens, 200 response tokens (Zipf), 2 kB of text in all."""
    ids = [min(int(rng.paretovariate(0.6)), VOCABULARY) for _ in range(500)]
    return Call(
        call_id=f"ca-{rng.getrandbits(64):016x}",
        rollout_id=lease.rollout.rollout_id,
        attempt_id=lease.attempt.attempt_id,
        sequence=sequence,
        span_id=f"{rng.getrandbits(64):016x}",
        trace_id=f"{rng.getrandbits(128):032x}",
        response_id=f"chatcmpl-{rng.getrandbits(64):016x}",
        model="policy",
        policy_version=3,
        tags={"agent": "solver", "turn": str(sequence)},
        request={"messages": [{"role": "user", "content": words(rng, 1200)}]},
        response={"message": {"role": "assistant", "content": words(rng, 800)}},
        prompt_ids=ids[:300],
        response_ids=ids[300:],
        logprobs=[-rng.expovariate(2.0) for _ in range(200)],
        sampling={"temperature": 1.0, "top_p": 1.0, "seed": rng.getrandbits(31)},
        finish_reason="stop",
        prompt_tokens=300,
        completion_tokens=200,
        start_time=time.time(),
        end_time=time.time(),
    )


def a_span(rng: random.Random, lease: AttemptedRollout, size: int = 1000) -> Span:
    """A span with ``size`` bytes of text."""
    return Span(
        rollout_id=lease.rollout.rollout_id,
        attempt_id=lease.attempt.attempt_id,
        name="tool",
        trace_id=f"{rng.getrandbits(128):032x}",
        span_id=f"{rng.getrandbits(64):016x}",
        attributes={semconv.TOOL_NAME: "calculator", semconv.TOOL_CALL_RESULT: words(rng, size)},
        start_time=time.time(),
        end_time=time.time(),
    )


async def calls_bytes(folder: Path) -> dict[str, float]:
    """Bytes of the file per call, everything included, and calls per second, one commit each."""
    rng, n = random.Random(1), 2000
    store = SQLiteStore(folder / "calls.sqlite")
    lease = await store.start_rollout("task")
    calls = [a_call(rng, lease, i) for i in range(n)]
    before, start = (await store.statistics())["bytes"], time.perf_counter()
    for call in calls:
        await store.add_calls([call])
    seconds = time.perf_counter() - start
    used = ((await store.statistics())["bytes"] - before) / n
    await store.close()
    return {"calls_bytes": round(used), "calls_per_s": round(n / seconds)}


async def spans_per_s(folder: Path) -> float:
    """1 kB spans, 100 a commit."""
    rng, batches = random.Random(2), 100
    store = SQLiteStore(folder / "spans.sqlite")
    lease = await store.start_rollout("task")
    spans = [a_span(rng, lease) for _ in range(100)]
    start = time.perf_counter()
    for _ in range(batches):
        await store.add_many_spans(spans)
    seconds = time.perf_counter() - start
    await store.close()
    return batches * 100 / seconds


async def leases_per_s(folder: Path) -> float:
    """64 workers, one lease a call."""
    n = 10_000
    store = SQLiteStore(folder / "leases.sqlite")
    await store.enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(n)])

    async def worker() -> None:
        while await store.dequeue_rollout():
            pass

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(64)))
    seconds = time.perf_counter() - start
    await store.close()
    return n / seconds


def server(path: str, pipe: Any) -> None:
    """The server process: says its URL, serves until SIGTERM."""
    asyncio.run(serve(path, port=0, ready=pipe.send))


async def rate(cycle: Callable[[int], Awaitable[None]], seconds: float) -> float:
    """Cycles per second over ``LANES`` concurrent lanes."""
    deadline, done = time.perf_counter() + seconds, itertools.count()

    async def lane(number: int) -> None:
        while time.perf_counter() < deadline:
            await cycle(number)
            next(done)

    start = time.perf_counter()
    await asyncio.gather(*(lane(i) for i in range(LANES)))
    return next(done) / (time.perf_counter() - start)


async def over_http(url: str, seconds: float) -> dict[str, float]:
    """Enqueue, lease, a 1 kB span, finish: in four requests, and in one."""
    rng, store = random.Random(3), StoreClient(url)
    text = words(rng, 1000)

    def span(lease: AttemptedRollout) -> Span:
        r, a = lease.rollout.rollout_id, lease.attempt.attempt_id
        return Span(rollout_id=r, attempt_id=a, name="tool", attributes={semconv.TOOL_CALL_RESULT: text})

    async def four(_: int) -> None:
        await store.enqueue_rollout("task")
        lease = await store.dequeue_rollout("w")
        assert lease is not None
        await store.add_span(span(lease))
        await store.update_attempt(
            lease.rollout.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED
        )

    leases: dict[int, AttemptedRollout] = {}

    async def one(lane: int) -> None:
        calls: list[tuple[str, dict[str, Any]]] = []
        if lane in leases:
            r, a = leases[lane].rollout.rollout_id, leases[lane].attempt.attempt_id
            end = {"status": AttemptStatus.SUCCEEDED, "spans": [span(leases[lane])]}
            calls.append(("update_attempt", {"rollout_id": r, "attempt_id": a, **end}))
        calls += [("enqueue_rollout", {"input": "task"}), ("dequeue_rollout", {"worker_id": "w"})]
        leases[lane] = (await store.batch(calls))[-1]

    found = {"cycles_per_s_http_4req": await rate(four, seconds)}
    found["cycles_per_s_http_batch"] = await rate(one, seconds)
    await store.close()
    return found


def served(folder: Path, seconds: float) -> dict[str, float]:
    """The HTTP figures, against a server process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=server, args=(str(folder / "served.sqlite"), there))
    process.start()
    try:
        return asyncio.run(over_http(here.recv(), seconds))
    finally:
        process.terminate()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per HTTP figure")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, float] = asyncio.run(calls_bytes(folder))
        found["spans_per_s"] = asyncio.run(spans_per_s(folder))
        found["leases_per_s"] = asyncio.run(leases_per_s(folder))
        found.update(served(folder, seconds))
    print(json.dumps({name: round(value) for name, value in found.items()}))


if __name__ == "__main__":
    main()
