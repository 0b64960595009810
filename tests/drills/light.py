"""Kill -9 drill of store server, gateways, runners and PostgreSQL, under light load: a kill takes a second.

Part of `make drills`; by itself: `PYTHONPATH=tests python tests/drills/light.py --kills 60 [--database
postgresql]`. The processes are the commands that a person would type (`agl store`, two of `agl gateway`, two
of `agl runner`); agents make a few calls to a scripted model. Who is killed when is a function of the seed. A
kill counts that met a process at work: a store or gateway that answers, a runner with an attempt.

Afterwards every call that an agent was answered is in the store (else ``lost``), once (else ``doubled``);
every rollout has succeeded, in one attempt; and all that a witness was told to be stored is there, once.
Meanwhile an intruder asks for what it may not have (``foreign_access``). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agl_programs.options import POLICY
from agl_testing.scripted import ScriptedModelServer
from contract.access import SECRET, TOKEN
from drills.core import AGL, Witness, console, end_all, free_port
from drills.intruder import Intruder
from drills.talker import CALLS, JOURNAL

from agentlightning.plugins.stores import open_store
from agentlightning.store import Store
from agentlightning.store.pages import pages
from agentlightning.types import ProxyLLM, Rollout, RolloutConfig
from agl_cluster.roles import REVOKED_VARIABLE, Revoked, RoleTokens
from agl_cluster.store.client import StoreClient

RUN = "light"
GATEWAYS = ("gateway-1", "gateway-2")
RUNNERS = ("runner-1", "runner-2")
OPEN = 32
"""Rollouts under way."""
PLACES = 8
"""Of each runner."""
READY = 60.0
"""Seconds that a process has to be at work."""
END = 400.0
"""Seconds that the rest of the rollouts have when nothing is killed any more."""
CONFIG = RolloutConfig(timeout_seconds=300, unresponsive_seconds=3, max_attempts=1000)


@dataclass
class Kill:
    """Seconds to wait, and whom to kill then."""

    pause: float
    role: str


def schedule(kills: int, seed: int, roles: tuple[str, ...]) -> list[Kill]:
    """Return who is killed when: each role equally often, in an order and with pauses of the seed."""
    chance = random.Random(f"light/{seed}")
    order = [roles[n % len(roles)] for n in range(kills)]
    chance.shuffle(order)
    return [Kill(chance.uniform(0.1, 0.9), role) for role in order]


@dataclass
class Stage:
    """The processes and where they are."""

    folder: Path
    place: str
    upstream: str
    postgres: Any = None
    """A ``contract.postgres_server.PostgresServer``, or none."""
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def roles(self) -> tuple[str, ...]:
        """Return all that can be killed."""
        return ("store", *GATEWAYS, *RUNNERS, *(("postgresql",) if self.postgres is not None else ()))

    def url(self, role: str) -> str:
        """Return where a role listens."""
        port = self.ports.setdefault(role, free_port())
        return f"http://127.0.0.1:{port}"

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def command(self, role: str) -> list[str]:
        """Return what a person would type."""
        store = self.url("store")
        if role == "store":
            return [*AGL, "store", self.place, "--port", str(self.ports["store"])]
        if role in GATEWAYS:
            listen = self.url(role).removeprefix("http://")
            return [
                *AGL, "gateway", "--listen", listen, "--store", store, "--upstream", self.upstream,
                "--model", "scripted",
            ]  # fmt: skip
        return [
            *AGL, "runner", "--store", store, "--agent", "drills.talker:talk", "--run", RUN,
            "--concurrency", str(PLACES),
        ]  # fmt: skip

    def start(self, role: str) -> None:
        """Start a process; what it prints goes to a file."""
        if role == "postgresql":
            if self.postgres.process.poll() is not None:
                self.postgres.start()
            return
        with (self.folder / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                self.command(role), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder
            )

    async def at_work(self, role: str) -> None:
        """Wait until a kill would hit something."""
        until = time.monotonic() + READY
        while not await self._works(role):
            code = None if role == "postgresql" else self.processes[role].poll()
            if code is not None:
                raise SystemExit(f"the {role} ended by itself with {code}; see {self.folder}/{role}.log")
            if time.monotonic() > until:
                raise SystemExit(
                    f"the {role} is not at work after {READY:.0f} s; see {self.folder}/{role}.log"
                )
            await asyncio.sleep(0.05)

    async def _works(self, role: str) -> bool:
        if role == "postgresql":
            return await self._answers("store", "/readyz")  # which asks its database
        if role in RUNNERS:
            own = f" {self.processes[role].pid}\n"
            return self.journal.exists() and own in self.journal.read_text()
        return await self._answers(role, "/readyz" if role == "store" else "/v1/models")

    async def _answers(self, role: str, path: str) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
                http.get(self.url(role) + path) as response,
            ):
                return role in GATEWAYS or response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def kill(self, role: str) -> None:
        """SIGKILL, and a new start."""
        if role == "postgresql":
            self.postgres.kill()
        else:
            self.processes[role].send_signal(signal.SIGKILL)
            self.processes[role].wait()
        self.kills[role.partition("-")[0]] += 1
        self.start(role)

    def close(self) -> None:
        """End all processes."""
        end_all(self.processes.values())


class Load:
    """Keeps rollouts under way, half of them at each gateway."""

    def __init__(self, store: StoreClient, gateways: list[str]) -> None:
        self.store, self.gateways = store, gateways
        self.rollouts: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Enqueue until told to stop, and then wait for the rest."""
        resources = [
            await self.store.add_resources({POLICY: ProxyLLM(endpoint=f"{gateway}/v1", model=POLICY)})
            for gateway in self.gateways
        ]
        waiting: list[str] = []
        while waiting or not stop.is_set():
            while len(waiting) < OPEN and not stop.is_set():
                number = len(self.rollouts)
                made = Rollout(
                    rollout_id=f"ro-light-{number:06d}", run_id=RUN, input=number, config=CONFIG,
                    resources_id=resources[number % len(resources)].resources_id,
                )  # fmt: skip
                await self.store.enqueue_many_rollouts([made])
                self.rollouts.append(made.rollout_id)
                waiting.append(made.rollout_id)
            ended = await self.store.wait_for_rollouts(waiting[:1], timeout=2.0)
            waiting = waiting[len(ended) :]


async def drill(stage: Stage, kills: int, seed: int) -> dict[str, Any]:
    """Start everything, kill, wait for the rest, and account."""
    for role in stage.roles:
        stage.start(role)
    await stage.at_work("store")
    store = StoreClient(stage.url("store"), TOKEN, patience=300.0)
    gateways = [stage.url(role) for role in GATEWAYS]
    tokens = RoleTokens(SECRET, Revoked(Path(os.environ[REVOKED_VARIABLE])))
    load, witness = Load(store, gateways), Witness(stage.url("store"))
    intruder = Intruder(store, stage.url("store"), tokens, [f"{url}/v1" for url in gateways], seed)
    stop, over = asyncio.Event(), asyncio.Event()
    loading = asyncio.create_task(load.run(stop))
    beside = [asyncio.create_task(witness.run(over)), asyncio.create_task(intruder.run(over))]
    try:
        for number, one in enumerate(schedule(kills, seed, stage.roles), 1):
            await asyncio.sleep(one.pause)
            await stage.at_work(one.role)
            stage.kill(one.role)
            for task in (loading, *beside):
                if task.done():
                    task.result()
            if number % 10 == 0:
                told = f"{len(load.rollouts)} rollouts, {intruder.tried} requests of the intruder"
                line = f"  {number:4} kills {dict(stage.kills)}, {told}"
                console.print(line, highlight=False, soft_wrap=True)
        stop.set()
        await asyncio.wait_for(loading, END)
        over.set()
        await asyncio.gather(*beside)
        await store.close()
    finally:
        for task in (loading, *beside):
            task.cancel()
        stage.close()
    return await account(stage, load, witness, intruder)


async def account(stage: Stage, load: Load, witness: Witness, intruder: Intruder) -> dict[str, Any]:
    """Compare what was acknowledged with what the store holds."""
    store = open_store(stage.place)
    try:
        lost, doubled = await witness.audit(store)
        calls = await journalled(store, stage.journal)
        wrong = [await rollout_is_wrong(store, one) for one in load.rollouts]
    finally:
        await store.close()
    for line in [*calls["lines"], *filter(None, wrong), *intruder.lines][:20]:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    unfinished = sum("no success" in line for line in wrong)
    return {
        "kills": stage.kills.total(),
        "lost": lost + calls["lost"] + unfinished,
        "doubled": doubled + calls["doubled"] + sum(map(bool, wrong)) - unfinished,
        "foreign_access": intruder.got,
        "by": dict(stage.kills),
        "rollouts": len(load.rollouts),
        "calls": calls["calls"],
        "acknowledged": sum(map(len, witness.acknowledged.values())),
        "refused": intruder.tried,
    }


async def journalled(store: Store, journal: Path) -> dict[str, Any]:
    """Look for every answered call in the store."""
    answered: dict[str, list[tuple[str, str]]] = {}
    for line in journal.read_text().splitlines():
        kind, rollout_id, attempt_id, what = line.split()
        if kind == "call":
            answered.setdefault(rollout_id, []).append((attempt_id, what))
    lost = doubled = 0
    lines: list[str] = []
    for rollout_id, notes in answered.items():
        stored: Counter[tuple[str, str]] = Counter()
        async for page in pages(store.query_calls, rollout_id, attempt_id=None):
            stored.update((call.attempt_id, call.response_id or "") for call in page)
        missing = [note for note in notes if note not in stored]
        twice = [note for note, count in stored.items() if count > 1]
        lost, doubled = lost + len(missing), doubled + len(twice)
        lines += [f"{rollout_id}: answered and not stored: {note}" for note in missing]
        lines += [f"{rollout_id}: stored twice: {note}" for note in twice]
    return {"calls": sum(map(len, answered.values())), "lost": lost, "doubled": doubled, "lines": lines}


async def rollout_is_wrong(store: Store, rollout_id: str) -> str:
    """Return what is wrong with a rollout that must have succeeded once, with all of its calls."""
    attempts = await store.query_attempts(rollout_id)
    good = [one for one in attempts if one.status == "succeeded"]
    status = str((await store.get_rollout_by_id(rollout_id)).status)
    if len(good) != 1 or status != "succeeded":
        why = "; ".join(f"{one.status}: {(one.reason or '')[-120:]}" for one in attempts)
        return f"{rollout_id}: {status}, {len(good) or 'no'} success of {len(attempts)} attempts ({why})"
    calls = await store.query_calls(rollout_id, attempt_id=good[0].attempt_id)
    few = len({call.response_id for call in calls}) < CALLS
    return f"{rollout_id}: no success of all calls: {len(calls)} of {CALLS}" if few else ""


def environment(folder: Path) -> None:
    """Set what all processes share."""
    os.environ["AGL_SECRET"], os.environ["AGL_TOKEN"] = SECRET.decode(), TOKEN
    os.environ[REVOKED_VARIABLE] = str(folder / "revoked")
    os.environ[JOURNAL] = str(folder / "journal")
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONUNBUFFERED"] = "1"


def trial(folder: Path, database: str, kills: int, seed: int) -> dict[str, Any]:
    """Drill over one database."""
    environment(folder)
    postgres = None
    if database == "postgresql":
        from contract.postgres_server import PostgresServer

        postgres = PostgresServer(durable=True)
    place = str(folder / "store.sqlite") if postgres is None else postgres.url()
    try:
        with ScriptedModelServer(lambda body: "ok") as model:
            stage = Stage(folder, place, model.url, postgres)
            return asyncio.run(drill(stage, kills, seed))
    finally:
        if postgres is not None:
            postgres.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--keep", action="store_true", help="leave the files, and say where")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="agl-drill-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # what it started ends with it
    keep, began = True, time.monotonic()
    try:
        found = trial(folder, given.database, given.kills, given.seed)
        found |= {"seed": given.seed, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(found), flush=True)
        wrong = any(found[name] for name in ("lost", "doubled", "foreign_access"))
        idle = not all(found[name] for name in ("rollouts", "calls", "acknowledged", "refused"))
        keep = given.keep or wrong or idle
        return int(wrong or idle)
    finally:
        if keep:
            console.print(f"files: {folder}", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
