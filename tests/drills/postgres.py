"""Kill -9 drill of PostgreSQL as a store: the server and processes that write it die at random, under load.

`.venv/bin/python tests/drills/postgres.py --kills 40`. Eight processes, each with a store
of its own on one database, put rollouts into the queue, lease them, send signs of life, calls, spans and
counts, and end them. This script kills the server, or one of them, again and again, and starts it anew. A
process notes in its journal what it is about to count, and what the store has acknowledged. Afterwards all of
that must be there (``lost``), once (``doubled``), and no rollout may have been leased to two attempts under
one fence (``double_leases``). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from contract.postgres_server import PostgresServer

from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import (
    AttemptedRollout,
    AttemptStatus,
    Call,
    Rollout,
    RolloutConfig,
    Span,
    new_id,
)

CLIENTS = 8
TASKS = 3
"""Rollouts that a process works on at a time."""
SILENCE = 4.0
"""Seconds after which the rollouts of a dead process are leased again."""
FEW = 5
"""Acknowledgements of a life before it may be ended: a drill of processes that start shows nothing."""
SHARE = 0.3
"""Of the kills, those of the server."""
LONGEST = 1800.0
"""Seconds for all kills: then it says that they were not made."""
RETRIED = ["failed", "timeout", "unresponsive"]


class Journal:
    """What a process was told, a line each, on disk before it goes on."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1)

    def note(self, what: str, **fields: Any) -> None:
        self.file.write(json.dumps({"what": what, **fields}) + "\n")


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a journal: a process may die within one."""
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            yield json.loads(line)


class Client:
    """A process of the drill."""

    def __init__(self, store: Store, name: str, folder: Path) -> None:
        self.store, self.name, self.folder = store, name, folder
        self.journal = Journal(folder / f"{name}.journal")
        self.held: set[str] = set()

    @property
    def stopping(self) -> bool:
        return (self.folder / "stop").exists()

    async def run(self) -> None:
        beating = asyncio.create_task(self.beat())
        await asyncio.gather(*(self.work(f"{self.name}-{n}") for n in range(TASKS)))
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await self.store.close()

    async def beat(self) -> None:
        """Signs of life of all that it holds."""
        while True:
            await asyncio.sleep(SILENCE / 8)
            await self.store.heartbeat(self.name, sorted(self.held), request_id=new_id("rq"))

    async def work(self, worker: str) -> None:
        """Put work into the queue and do work, whosever it is; in the end what is left."""
        leases: list[AttemptedRollout] = []
        while not self.stopping or leases or await self.left():
            if not self.stopping:
                await self.enqueue()
            leases = await self.store.dequeue_many_rollouts(
                worker, limit=random.choice((1, 1, 2)), wait=0.5, request_id=new_id("rq")
            )
            for lease in leases:
                try:
                    await self.do(lease)
                except AttemptEnded:  # it was thought dead: somebody else has the rollout
                    self.journal.note("fenced", rollout=lease.rollout.rollout_id)
                finally:
                    self.held.discard(lease.attempt.attempt_id)

    async def left(self) -> bool:
        """Whether a rollout has not ended: those of dead processes come back into the queue."""
        return bool({*(await self.store.statistics("drill"))["rollouts"]} - {"succeeded", "failed"})

    async def enqueue(self) -> None:
        config = RolloutConfig(unresponsive_seconds=SILENCE, max_attempts=50, retry_on=RETRIED)
        given = [
            Rollout(rollout_id=new_id("ro"), input=self.name, run_id="drill", config=config)
            for _ in range(random.choice((1, 1, 2)))
        ]
        made = await self.store.enqueue_many_rollouts(given, request_id=new_id("rq"))
        self.journal.note("enqueued", rollouts=[one.rollout_id for one in made])

    async def do(self, lease: AttemptedRollout) -> None:
        """All that happens to a rollout, each step acknowledged by itself."""
        ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
        self.held.add(ids[1])
        self.journal.note("leased", rollout=ids[0], attempt=ids[1], fence=lease.attempt.fence)
        for sequence in range(2):
            call = Call(
                call_id=new_id("ca"),
                rollout_id=ids[0],
                attempt_id=ids[1],
                sequence=sequence,
                prompt_ids=[1, 2, 3],
                response_ids=[4],
                logprobs=[-0.5],
            )
            await self.store.add_calls([call], fence=lease.attempt.fence, request_id=new_id("rq"))
            self.journal.note("call", call=call.call_id)
        span = Span(rollout_id=ids[0], attempt_id=ids[1], name="tool", span_id=new_id("sp"))
        await self.store.add_many_spans([span], request_id=new_id("rq"))
        self.journal.note("span", rollout=ids[0], attempt=ids[1], span=span.span_id)
        self.journal.note("counting")
        await self.store.count("drill", self.name, request_id=new_id("rq"))
        self.journal.note("counted")
        await self.store.update_attempt(*ids, AttemptStatus.SUCCEEDED, request_id=new_id("rq"))
        self.journal.note("ended", rollout=ids[0], attempt=ids[1])


@dataclass
class Scene:
    """The server, the processes, what was done to them."""

    server: PostgresServer
    folder: Path
    url: str
    kills: Counter[str] = field(default_factory=Counter)
    lives: list[int] = field(default_factory=lambda: [0] * CLIENTS)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    seen: int = 0
    """Acknowledgements when the server was last started."""

    def name(self, number: int) -> str:
        return f"c{number}-{self.lives[number]}"

    def start(self, number: int) -> None:
        self.lives[number] += 1
        environment = {**os.environ, "AGL_STORAGE": self.url, "AGL_STORE_PATIENCE": "120"}
        with (self.folder / f"{self.name(number)}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [sys.executable, __file__, "--client", self.name(number), str(self.folder)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip

    def done(self, number: int) -> int:
        path = self.folder / f"{self.name(number)}.journal"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def total(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("*.journal"))

    def check(self) -> None:
        """No process may end by itself."""
        for number, process in self.processes.items():
            if process.poll() is not None:
                log = (self.folder / f"{self.name(number)}.log").read_text()[-2000:]
                raise SystemExit(f"{self.name(number)} ended by itself with {process.returncode}: {log}")

    def strike(self, choose: random.Random) -> bool:
        """Kill one of those that have done something since they were started, and start it anew."""
        if self.kills["server"] < SHARE * (self.kills.total() + 1):
            if self.total() < self.seen + FEW * CLIENTS:
                return False
            self.server.kill()
            time.sleep(choose.uniform(0, 0.5))
            self.server.start()
            self.seen = self.total()
            self.kills["server"] += 1
            return True
        ready = [number for number in self.processes if self.done(number) >= FEW]
        if not ready:
            return False
        number = choose.choice(ready)
        self.processes[number].kill()
        self.processes[number].wait()
        self.start(number)
        self.kills["client"] += 1
        return True

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.server.stop()


def fight(scene: Scene, kills: int, seed: int) -> None:
    """Make all kills, then let the processes finish all work."""
    choose, until = random.Random(seed), time.monotonic() + LONGEST
    for number in range(CLIENTS):
        scene.start(number)
    while scene.kills.total() < kills:
        time.sleep(choose.uniform(0.05, 0.6))
        scene.check()
        scene.strike(choose)
        if time.monotonic() > until:
            raise SystemExit(f"{scene.kills.total()} of {kills} kills in {LONGEST:g} s: {scene.folder}")
    while not all(scene.done(number) >= FEW for number in range(CLIENTS)):
        time.sleep(0.2)
        scene.check()
    (scene.folder / "stop").touch()
    for number, process in scene.processes.items():
        if process.wait(LONGEST) != 0:
            raise SystemExit((scene.folder / f"{scene.name(number)}.log").read_text()[-2000:])


async def audit(url: str, folder: Path, store: Store | None = None) -> dict[str, Any]:
    """Compare the journals with the store."""
    from agl_postgres.store import PostgresStore

    told: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    counted: dict[str, Counter[str]] = {}
    for path in sorted(folder.glob("*.journal")):
        of = counted[path.stem] = Counter()
        for entry in entries(path):
            told[entry["what"]].append(entry)
            of[entry["what"]] += 1
    opened = store or PostgresStore(url, read_only=True)
    try:
        found = await _compare(opened, told, counted)
    finally:
        if store is None:
            await opened.close()
    return {**found, "acknowledged": {what: len(entries) for what, entries in sorted(told.items())}}


async def _compare(
    store: Store, told: dict[str, list[dict[str, Any]]], counted: dict[str, Counter[str]]
) -> dict[str, Any]:
    rollouts = {one.rollout_id: one for one in await store.query_rollouts(run_id="drill", limit=1_000_000)}
    lost, doubled = Counter[str](), Counter[str]()
    fences: dict[tuple[str, int], str] = {}
    double_leases = 0
    ends: dict[str, str] = {}
    calls, spans = set[str](), set[tuple[str, str]]()
    for rollout_id in rollouts:
        done = 0
        for attempt in await store.query_attempts(rollout_id):
            ends[attempt.attempt_id] = str(attempt.status)
            double_leases += (rollout_id, attempt.fence) in fences
            fences[rollout_id, attempt.fence] = attempt.attempt_id
            done += attempt.status is AttemptStatus.SUCCEEDED
        doubled["ends"] += done > 1
        for call in await store.query_calls(rollout_id, None):
            doubled["calls"] += call.call_id in calls
            calls.add(call.call_id)
        numbers = set[tuple[str, int]]()
        for span in await store.query_spans(rollout_id, None):
            if span.name == "tool":
                doubled["spans"] += (span.attempt_id, span.span_id) in spans
                spans.add((span.attempt_id, span.span_id))
            doubled["numbers"] += (span.attempt_id, span.sequence_id) in numbers
            numbers.add((span.attempt_id, span.sequence_id))
    lost["rollouts"] = sum(i not in rollouts for entry in told["enqueued"] for i in entry["rollouts"])
    for entry in told["leased"]:
        holder = fences.get((entry["rollout"], entry["fence"]))
        lost["leases"] += holder is None
        double_leases += holder not in (None, entry["attempt"])
    lost["calls"] = sum(entry["call"] not in calls for entry in told["call"])
    lost["spans"] = sum((entry["attempt"], entry["span"]) not in spans for entry in told["span"])
    lost["ends"] = sum(ends.get(entry["attempt"]) != "succeeded" for entry in told["ended"])
    counts = (await store.counts()).get("drill", {})
    for name, of in counted.items():
        n = counts.get(name, 0)
        lost["counts"] += max(0, of["counted"] - n)
        doubled["counts"] += max(0, n - of["counting"])
    open_ones = [one for one in rollouts.values() if not one.status.final]
    return {
        "lost": lost.total(),
        "doubled": doubled.total(),
        "double_leases": double_leases,
        "unfinished": len(open_ones),
        "lost_by_kind": {name: n for name, n in lost.items() if n},
        "doubled_by_kind": {name: n for name, n in doubled.items() if n},
        "attempts": len(ends),
        "refused": (await store.counts()).get("refused", {}),
    }


def drill(kills: int, seed: int = 1) -> dict[str, Any]:
    """Run the drill. ``worthless``: why it has shown less than it should."""
    folder = Path(tempfile.mkdtemp(prefix="agl-drill-pg-"))
    began = time.monotonic()
    server = PostgresServer(durable=True)
    scene = Scene(server, folder, server.url())
    try:
        fight(scene, kills, seed)
        found = asyncio.run(audit(scene.url, folder))
    except BaseException:
        print(f"files: {folder}", file=sys.stderr)
        raise
    finally:
        scene.close()
    worthless = [f"never killed: {role}" for role in ("server", "client") if not scene.kills[role]]
    if found["unfinished"]:
        worthless.append(f"{found['unfinished']} rollouts have not ended")
    if not all(found["acknowledged"].get(what) for what in ("enqueued", "leased", "call", "span", "ended")):
        worthless.append("too little was written")
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "kills": scene.kills.total(),
        **found,
        "killed": dict(scene.kills),
        "clients": CLIENTS,
        "worthless": worthless,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }


async def client(name: str, folder: Path) -> None:
    from agl_postgres.store import PostgresStore

    store = PostgresStore(os.environ["AGL_STORAGE"])
    await Client(store, name, folder).run()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--client", nargs=2, metavar=("NAME", "FOLDER"), help="one of its processes")
    given = parser.parse_args(words)
    if given.client:
        asyncio.run(client(given.client[0], Path(given.client[1])))
        return 0
    result = drill(given.kills, given.seed)
    print(json.dumps(result), flush=True)
    return int(any(result[name] for name in ("lost", "doubled", "double_leases", "worthless")))


if __name__ == "__main__":
    raise SystemExit(main())
