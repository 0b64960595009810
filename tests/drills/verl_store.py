"""The store dies in the middle of steps while verl trains an agent of which 30 % of the rollouts break.

Part of `make drill-verl`; by itself: `python tests/drills/verl_store.py [--kills 4]`. Store, runner and
trainer are the commands that a person would type, each in a process of its own (as in ``core.py``). While
rollouts are under way, and while verl updates, in turn, the store is killed with SIGKILL and started anew.
Steps must end by their quorum. Afterwards each is on record once, what the store had acknowledged to a
*witness* is there once, every fingerprint verifies, no broken rollout has trained a token, and no step's
reward counts one as a zero.

The last line is one JSON object; exit status 1 where one of these is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drills.core import HERE, ROOT, RUN, SECRET, Scene, Witness, console, free_port, last_step
from drills.unruly import WAYS, way_of

from agentlightning.store import SQLiteStore
from agentlightning.types import RolloutFingerprint, StepReport
from agl_audit.locations import RunLocation
from agl_audit.run import run_in
from agl_audit.verification.verify import verify

PATIENCE = 900.0
"""Seconds that the whole run may take."""
UNDER_WAY = "select count(*) from rollouts where run_id = ? and status in ('queuing', 'running', 'requeuing')"
PHASES = ("rollouts", "update")
"""What a step is at when the store is killed, in turn."""


class VerlScene(Scene):
    """The three processes, the trainer with the driver ``verl``."""

    python = ""

    def command(self, role: str) -> list[str]:
        """As in core's drill, with the other configuration."""
        own = str(HERE / "verl.yaml")
        made = [own if word == str(HERE / "calc_x.yaml") else word for word in super().command(role)]
        if role != "trainer":
            return made
        return [*made, "--set", f"backend.options.python={self.python}", "--set", "environment.headroom={}"]

    def phase(self) -> str:
        """Whether rollouts of a step are under way; else verl has their rows."""
        with closing(sqlite3.connect(f"file:{self.place}?mode=ro", uri=True, timeout=5.0)) as file:
            (count,) = file.execute(UNDER_WAY, (RUN,)).fetchone()
        return "rollouts" if count else "update"

    def running(self) -> bool:
        return self.processes["trainer"].poll() is None


async def train(scene: VerlScene, kills: int) -> tuple[Witness, Counter[str]]:
    """Train to the end; the store dies once a step, from the second one on. Kills by phase."""
    for role in ("store", "runner", "trainer"):
        scene.start(role)
    witness, stop, struck = Witness(scene.url), asyncio.Event(), Counter[str]()
    writing = asyncio.create_task(witness.run(stop))
    limit = time.monotonic() + PATIENCE
    try:
        while scene.running():
            await asyncio.sleep(0.05)
            if time.monotonic() > limit:
                raise SystemExit(f"not over within {PATIENCE:g} s; see {scene.folder}/trainer.log")
            wanted = PHASES[struck.total() % len(PHASES)]
            if struck.total() < kills and last_step(scene) > struck.total() and scene.phase() == wanted:
                scene.kill("store")
                struck[wanted] += 1
                console.print(f"  store killed in step {last_step(scene) + 1}: {wanted}", highlight=False)
            if writing.done():
                writing.result()
    finally:
        stop.set()
        await asyncio.gather(writing, return_exceptions=True)
        scene.close()
    if code := scene.processes["trainer"].returncode:
        raise SystemExit(f"the trainer ended with {code}; see {scene.folder}/trainer.log")
    return witness, struck


async def account(scene: VerlScene, witness: Witness) -> dict[str, Any]:
    """What the store holds afterwards."""
    store = SQLiteStore(scene.place)
    try:
        lost, doubled = await witness.audit(store)
        reports = await store.query_steps(RUN)
        fingerprints = await store.query_fingerprints(RUN, limit=100_000)
        rollouts = {
            r.rollout_id: r for r in await store.query_rollouts(run_id=RUN, mode="train", limit=100_000)
        }
        ways = {name: way_of(rollout.seed) for name, rollout in rollouts.items()}
        checked = await verify(await run_in(store, RunLocation(str(scene.place), scene.folder / RUN, RUN)))
    finally:
        await store.close()
    steps = [report.step for report in reports]
    lost += len(set(range(scene.steps)) - set(steps)) + sum(
        s.ledger.get("not-recorded", 0) for s in fingerprints
    )
    doubled += (
        len(steps)
        - len(set(steps))
        + sum(n > 1 for n in Counter(s.rollout_id for s in fingerprints).values())
    )
    return {
        "lost": lost,
        "doubled": doubled,
        "unverified": len(checked.differences),
        "acknowledged": sum(map(len, witness.acknowledged.values())),
        "rollouts": len(rollouts),
        **broken(reports, fingerprints, ways),
    }


def broken(
    reports: list[StepReport], fingerprints: list[RolloutFingerprint], ways: dict[str, str | None]
) -> dict[str, Any]:
    """What became of the rollouts that break, and whether a step's reward knows only those that do not."""
    failed = Counter(one.failure for one in fingerprints if one.failure)
    wrong = [s for s in fingerprints if (way := ways[s.rollout_id]) and s.failure not in WAYS[way]]
    by_step = {report.step: report.metrics for report in reports}
    zeros = 0
    for step, metrics in by_step.items():
        of_step = [s for s in fingerprints if s.step == step]
        rewards = [s.reward for s in of_step if not s.failure and s.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else math.nan
        zeros += not math.isclose(metrics["reward_mean"], mean, rel_tol=1e-9)
        zeros += metrics["reward_count"] != len(rewards)
    return {
        "broken": sum(1 for s in fingerprints if ways[s.rollout_id]),
        "broken_trained": sum(
            bool(s.rows or s.ledger.get("trained")) for s in fingerprints if ways[s.rollout_id]
        ),
        "failed_otherwise": len(wrong),
        "rewards_with_zeros": zeros,
        "failures": dict(sorted(failed.items())),
        "trained_rollouts": sum(bool(s.rows) for s in fingerprints),
        "seconds_a_step": [round(sum(report.seconds.values()), 1) for report in reports],
    }


def wrongs(told: dict[str, Any], kills: int) -> list[str]:
    """What is not as it must be."""
    none = ("lost", "doubled", "unverified", "broken_trained", "failed_otherwise", "rewards_with_zeros")
    found = [f"{name}: {told[name]}" for name in none if told[name]]
    some = ("acknowledged", "broken", "trained_rollouts")
    found += [f"no {name}: nothing was tested" for name in some if not told[name]]
    kinds = [("agent-raised",), ("no-call",), ("straggler", "timeout")]
    found += [f"nothing ended as {k}" for k in kinds if not any(told["failures"].get(kind) for kind in k)]
    if sum(told["store_kills"].values()) < kills:
        found.append(f"over after {told['store_kills']} of {kills} kills")
    return found


def drill(folder: Path, python: str, kills: int) -> dict[str, Any]:
    """Train, kill, count. ``store_kills``: by what the step was at; ``wrong``: what is not as it must be."""
    scene = VerlScene("verl", folder, 32, kills + 2, free_port())
    scene.python = python
    began = time.monotonic()
    witness, struck = asyncio.run(train(scene, kills))
    told = {"store_kills": dict(struck), "steps": scene.steps, **asyncio.run(account(scene, witness))}
    return {**told, "wrong": wrongs(told, kills), "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="keep the run's files here")
    asked = parser.parse_args()
    os.environ["AGL_SECRET"] = SECRET
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    with tempfile.TemporaryDirectory(prefix="drill-verl-store-") as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        told = drill(folder, made.stdout.decode().split()[-1], asked.kills)
    print(json.dumps(told))
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
