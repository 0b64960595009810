"""Kill -9 drill of the core: trainer, runner and store server die at random while calc_x trains.

`make drills-core`. A reference run trains without a kill; then the same run is trained by the same three
commands that a person would use (`agl store`, `agl train --resume`, `agl runner`), each in a process of its
own, while this script kills one of them with SIGKILL again and again and starts it anew: once with 16
rollouts at a time, once with one. In deterministic mode every step's sha256 over rows and parameters must
come out as in the reference.

Beside the training a *witness* writes to the same store and notes what the store has acknowledged; afterwards
all of it must be there (``lost``), once (``doubled``). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from agentlightning.store import SQLiteStore, Store
from agentlightning.types import AttemptStatus, Rollout, Span, StepReport
from agl_audit.locations import RunLocation
from agl_audit.run import run_in
from agl_audit.verification.verify import verify
from agl_cluster.store.client import StoreClient

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUN = "drill"
SECRET = "of-this-drill-and-no-other"
"""``AGL_SECRET`` of all processes of a drill, and of its witness."""
ROLES = ("store", "runner", "trainer")
IDLE = 0.25
"""Largest share of steps that may train nothing."""
CHECKPOINTED = 2
"""Reported steps after which there is a checkpoint: that of a step is written before the next one begins."""
AGL = [str(Path(sys.executable).with_name("agl"))]
console = Console(stderr=True)


@dataclass
class Scene:
    """One run: its folder, its processes, what was done to them."""

    name: str
    folder: Path
    concurrency: int
    steps: int
    port: int
    kills: Counter[str] = field(default_factory=Counter)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    midway: bool = False
    """A trainer was killed that had a checkpoint behind it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def place(self) -> Path:
        return self.folder / "store.sqlite"

    @property
    def again(self) -> list[str]:
        """The run is gone on with as soon as there is one."""
        return ["--resume"] if (self.folder / RUN).is_dir() else []

    def command(self, role: str) -> list[str]:
        """What a person would type."""
        config = str(HERE / "calc_x.yaml")
        if role == "store":
            return [*AGL, "store", str(self.place), "--port", str(self.port)]
        if role == "runner":
            return [
                *AGL, "runner", "--store", self.url, "--config", config, "--run", RUN, "--workers", "1",
                "--concurrency", str(self.concurrency),
            ]  # fmt: skip
        return [
            *AGL, "train", "--config", config, "--run", RUN, *self.again, "--steps", str(self.steps),
            "--set", f"output={self.folder}", "--set", f"store={self.url}", "--set", "agent.concurrency=0",
        ]  # fmt: skip

    def start(self, role: str) -> None:
        """Start a process; what it prints goes to a file."""
        log = (self.folder / f"{role}.log").open("ab")
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.processes[role] = subprocess.Popen(
            self.command(role), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
        )
        log.close()
        self.started[role] = time.monotonic()

    def kill(self, role: str) -> None:
        """SIGKILL to this one process: what it has started must see for itself that it is gone."""
        process = self.processes[role]
        if process.poll() is not None:  # it ended by itself: that is not ours to hide by a new start
            return
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills[role] += 1
        self.midway |= role == "trainer" and last_step(self) >= CHECKPOINTED
        self.start(role)

    def close(self) -> None:
        end_all(self.processes.values())


def end_all(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """End processes, with SIGKILL those that do not end by SIGTERM."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Witness:
    """Writes to the store all the while, and remembers what was acknowledged."""

    def __init__(self, url: str) -> None:
        self.store = StoreClient(url, patience=120.0)
        self.acknowledged: dict[str, list[str]] = {}
        """Rollout → names of its spans that the store said it has."""
        self.ended: set[str] = set()
        self.number = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.write()
            await asyncio.sleep(0.05)
        await self.store.close()

    async def write(self) -> None:
        """A rollout with three spans, each acknowledged by itself, and its end."""
        rollout_id = f"ro-witness-{self.number:06d}"
        self.number += 1
        await self.store.enqueue_many_rollouts(
            [Rollout(rollout_id=rollout_id, run_id="witness", input=self.number)]
        )
        self.acknowledged[rollout_id] = []
        lease = await self.store.start_attempt(rollout_id, worker_id="witness")
        for n in range(3):
            span = Span(
                rollout_id=rollout_id, attempt_id=lease.attempt.attempt_id, name=f"s{n}", span_id=f"{n:016x}"
            )
            await self.store.add_span(span)
            self.acknowledged[rollout_id].append(span.name)
        await self.store.update_attempt(rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
        self.ended.add(rollout_id)

    async def audit(self, store: Store) -> tuple[int, int]:
        """How many acknowledged writes are missing, and how many are there twice."""
        lost = doubled = 0
        for rollout_id, names in self.acknowledged.items():
            attempts = await store.query_attempts(rollout_id)
            doubled += len(attempts) > 1
            found = Counter(span.name for span in await store.query_spans(rollout_id))
            lost += sum(name not in found for name in names)
            doubled += sum(n > 1 for n in found.values())
            if rollout_id in self.ended:
                lost += str((await store.get_rollout_by_id(rollout_id)).status) != "succeeded"
        return lost, doubled


async def train(scene: Scene, kills: int, choose: random.Random) -> Witness:
    """Train to the end; ``kills``: how many kills to spread over it (0: a quiet run)."""
    for role in ROLES:
        scene.start(role)
    witness, stop = Witness(scene.url), asyncio.Event()
    writing = asyncio.create_task(witness.run(stop))
    try:
        while scene.processes["trainer"].poll() is None:
            await asyncio.sleep(pause(scene, kills, choose))
            still_serving(scene)
            if not ahead(scene, kills) and scene.processes["trainer"].poll() is None:
                strike(scene, kills, choose)
            if writing.done():
                writing.result()
    finally:
        stop.set()
        await asyncio.gather(writing, return_exceptions=True)
        scene.close()
    code = scene.processes["trainer"].returncode
    if code != 0:
        raise SystemExit(f"{scene.name}: the trainer ended with {code}; see {scene.folder}/trainer.log")
    if scene.kills.total() < kills:
        raise SystemExit(
            f"{scene.name}: over after {scene.kills.total()} of {kills} kills: give more --steps"
        )
    return witness


def pause(scene: Scene, kills: int, choose: random.Random) -> float:
    """Seconds to the next kill: at random, and soon where the kills lag behind the steps."""
    if scene.kills.total() >= kills:
        return 0.2
    behind = scene.kills.total() < planned(scene, kills, last_step(scene) + 1)
    return choose.uniform(0.05, 0.5) if behind else choose.uniform(0.3, 3.0)


def ahead(scene: Scene, kills: int) -> bool:
    """Kills are spread over the steps: those that would hit nothing but the first wait for their turn."""
    return scene.kills.total() >= planned(scene, kills, last_step(scene) + 2)


def planned(scene: Scene, kills: int, steps: int) -> float:
    """Kills that should have been made in so many steps: all of them when three quarters are done."""
    return min(kills, kills * steps / (0.75 * scene.steps))


def strike(scene: Scene, kills: int, choose: random.Random) -> None:
    """Kill one of the three. A trainer is let live for a random while, else no run would ever end. The last
    kills are for those that were never killed, a trainer with a checkpoint behind it among them.
    """
    role = choose.choices(ROLES, [4, 3, 3])[0]
    if role == "trainer" and time.monotonic() - scene.started[role] < choose.uniform(0, 8):
        role = choose.choice(["store", "runner"])
    spared = [r for r in ROLES if not (scene.midway if r == "trainer" else scene.kills[r])]
    if len(spared) >= kills - scene.kills.total():
        role = spared[0]
        if role == "trainer" and last_step(scene) < CHECKPOINTED:
            return
    scene.kill(role)
    console.print(
        f"  {scene.name}: kill {scene.kills.total():3}  {role:8} after {last_step(scene)} steps",
        highlight=False,
    )


def still_serving(scene: Scene) -> None:
    """Store and runner must not end by themselves."""
    for role in ("store", "runner"):
        code = scene.processes[role].poll()
        if code is not None:
            raise SystemExit(
                f"{scene.name}: the {role} ended by itself with {code}; see {scene.folder}/{role}.log"
            )


def last_step(scene: Scene) -> int:
    file = scene.folder / RUN / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


async def hashes(store: SQLiteStore) -> dict[int, str]:
    """Step → sha256 over its rows and the parameters after it."""
    out = {}
    for report in await store.query_steps(RUN):
        assert report.rows_digest and report.params_digest, "deterministic mode logs both digests each step"
        out[report.step] = hashlib.sha256((report.rows_digest + report.params_digest).encode()).hexdigest()
    return out


async def account(scene: Scene, witness: Witness) -> dict[str, Any]:
    """What the store holds afterwards: hashes, what is missing, what is there twice, what does not verify."""
    store = SQLiteStore(scene.place)
    try:
        lost, doubled = await witness.audit(store)
        fingerprints = await store.query_fingerprints(RUN, limit=100_000)
        doubled += sum(n > 1 for n in Counter(one.rollout_id for one in fingerprints).values())
        lost += sum(one.ledger.get("not-recorded", 0) for one in fingerprints)
        run = next(r for r in await store.query_runs() if r["run_id"] == RUN)
        lives = [0, *(life["first_step"] for life in run.get("resumed", []))]
        doubled += sum(later < earlier for earlier, later in pairwise(lives))  # a finished step, once more
        checked = await verify(await run_in(store, RunLocation(str(scene.place), scene.folder / RUN, RUN)))
        return {
            "hashes": await hashes(store),
            "lost": lost,
            "doubled": doubled,
            "unverified": len(checked.differences),
            "hit": sorted(scene.kills),
            "lives": len(lives),
            "midway": sum(first_step > 0 for first_step in lives),
            "idle": idle(scene, await store.query_steps(RUN), checked.rollouts, len(fingerprints)),
            "calls": sum(one.calls for one in fingerprints),
            "acknowledged": sum(map(len, witness.acknowledged.values())),
        }
    finally:
        await store.close()


def idle(scene: Scene, reports: list[StepReport], verified: int, fingerprinted: int) -> list[str]:
    """What would make equal hashes worthless: many steps that trained nothing (one whose groups all earned
    the same may), rollouts that nobody compared.
    """
    still = [report.step for report in reports if not report.metrics.get("tokens_trained")]
    found = [f"steps {still} had no row to train"] if len(still) > IDLE * len(reports) else []
    if len({report.params_digest for report in reports}) < 2:
        found.append("the parameters never changed")
    if not 0 < fingerprinted == verified:
        found.append(f"{verified} of {fingerprinted} fingerprinted rollouts were verified")
    if [report.step for report in reports] != list(range(scene.steps)):
        found.append(f"{len(reports)} of {scene.steps} steps are on record")
    return [f"{scene.name}: {what}" for what in found]


def untested(struck: list[dict[str, Any]], acknowledged: int) -> list[str]:
    """What the kills did not reach: then the drill has shown nothing about it."""
    found = [f"never killed: {role}" for one in struck for role in ROLES if role not in one["hit"]]
    if not all(one["midway"] for one in struck):
        found.append("no trainer went on from a checkpoint")
    if not acknowledged:
        found.append("the witness wrote nothing")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def scene_of(
    name: str, base: Path, concurrency: int, steps: int, kills: int, seed: int
) -> tuple[Scene, dict[str, Any]]:
    scene = Scene(name, base / name, concurrency, steps, free_port())
    scene.folder.mkdir()
    began = time.monotonic()
    witness = await train(scene, kills, random.Random(seed))
    found = await account(scene, witness)
    found["seconds"] = round(time.monotonic() - began, 1)
    console.print(
        f"[bold]{name}[/]: {len(found['hashes'])} steps, {scene.kills.total()} kills {dict(scene.kills)}, "
        f"{found['lives']} lives of the trainer, {found['calls']} calls, {found['seconds']} s",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    return scene, found


async def drill(base: Path, kills: int, steps: int, seed: int) -> dict[str, Any]:
    """The reference, then both runs under fire."""
    _, reference = await scene_of("quiet-16", base, 16, steps, 0, seed)
    _, single = await scene_of("quiet-1", base, 1, steps, 0, seed)
    half = -(-kills // 2)
    struck = [
        await scene_of("killed-16", base, 16, steps, half, seed + 1),
        await scene_of("killed-1", base, 1, steps, half, seed + 2),
    ]
    every = [single, *(found for _, found in struck)]
    wanted = reference["hashes"]
    assert len(wanted) == steps
    mismatches = sum(
        found["hashes"].get(step) != digest for found in every for step, digest in wanted.items()
    )
    mismatches += sum(len(found["hashes"].keys() - wanted.keys()) for found in every)
    by_role = sum((scene.kills for scene, _ in struck), Counter())
    return {
        "kills": by_role.total(),
        "lost": sum(found["lost"] for found in [reference, *every]),
        "doubled": sum(found["doubled"] for found in [reference, *every]),
        "hash_mismatches": mismatches,
        "steps_compared": len(every) * steps,
        "unverified": sum(found["unverified"] for found in [reference, *every]),
        "worthless": [
            *(what for found in [reference, *every] for what in found["idle"]),
            *untested([found for _, found in struck], sum(found["acknowledged"] for _, found in struck)),
        ],
        "midway": sum(found["midway"] for _, found in struck),
        "acknowledged": sum(found["acknowledged"] for found in [reference, *every]),
        "killed": dict(by_role),
        "seed": seed,
        "seconds": [found["seconds"] for found in [reference, *every]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the runs' files, and say where")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="agl-drill-"))
    os.environ["AGL_SECRET"] = SECRET
    try:
        result = asyncio.run(drill(base, arguments.kills, arguments.steps, arguments.seed))
        print(json.dumps(result), flush=True)
        good = not any(
            result[name] for name in ("lost", "doubled", "hash_mismatches", "unverified", "worthless")
        )
        arguments.keep = arguments.keep or not good
    except BaseException:
        arguments.keep = True
        raise
    finally:
        if arguments.keep:
            console.print(f"files: {base}", soft_wrap=True)
        else:
            shutil.rmtree(base, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
