"""Kill -9 drill of the verl driver: trainer, verl's child, a training worker, the engine, one after another.

`make drill-verl`. `agl train` runs calc_x with verl; when a step or two are on file, this script kills one
process with SIGKILL, waits for what follows (the run has to end by itself, with nothing of Ray left behind)
and types the same command again, with ``--resume``. Afterwards every step must be on record once, no life may
have begun before a checkpoint that was there, each step's fingerprints must verify against the store, and the
exported policy must load in transformers with the logits that the local engine's network computes.

With ``--nodes 2`` the run joins a Ray cluster, which has to stand after each kill with nothing of the run in
it. Then the store dies, in the middle of steps of another run (``verl_store.py``).

The last line is one JSON object; exit status 1 where something was lost, trained twice or left running.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from drills import verl_store
from ray_nodes import Joined, cluster

from agentlightning.store import SQLiteStore
from agl_audit.locations import RunLocation
from agl_audit.run import run_in
from agl_audit.verification.verify import verify
from agl_verl.process import session

ROOT = Path(__file__).resolve().parents[2]
RUN = "drill"
BEGIN = 2
"""Steps on file, in each life, before its kill: there is a checkpoint then."""
PATIENCE = 600.0
"""Seconds that a life may take to get there; verl's start is most of it."""
AGL = str(Path(sys.executable).with_name("agl"))
console = Console(stderr=True)

EQUAL_LOGITS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
from agl_local.policy.folder import load_policy
from agl_local.training.logprobs import token_logprobs
from agl_local.training.pack import pack
folder = sys.argv[1]
ids = [3, 17, 101, 5, 44, 9, 250, 12]
theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
ours = load_policy(folder).model
with torch.no_grad():
    wanted = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
    spots = list(range(1, len(ids)))
    found = token_logprobs(ours, pack([ids], [spots]), torch.ones(len(spots))).logprobs
print(json.dumps(max(abs(float(wanted[t - 1, ids[t]]) - float(x)) for t, x in zip(spots, found))))
"""


class Life:
    """One `agl train` of the run, and the session that verl leads under it; the cluster it has ``joined``."""

    def __init__(self, folder: Path, python: str, steps: int, joined: Joined) -> None:
        self.folder, self.joined = folder, joined
        settings = {
            "output": folder, "environment.headroom": "{}", "environment.val.limit": 8,
            "training.batch_size": 4, "backend.options.save_every": 1, "backend.options.python": python,
            **joined.settings,
        }  # fmt: skip
        command = [AGL, "train", "--config", str(ROOT / "examples" / "calc_x" / "verl.yaml"), "--run", RUN,
                   "--steps", str(steps)]  # fmt: skip
        command += ["--resume"] if (folder / RUN).is_dir() else []
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        with (folder / "train.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.sessions: set[int] = set()

    def look(self) -> dict[str, int]:
        """The processes by what they are; sessions that our trainer's children lead are remembered."""
        found = {"trainer": self.process.pid}
        for pid in children(self.process.pid):
            if "agl_verl.inside.main" in command_line(pid):
                found["child"] = pid
                self.sessions.add(pid)
                for one in [*session.members(pid), *self.joined.running()]:
                    for what, sign in SIGNS.items():
                        if sign in command_line(one):
                            found[what] = one
        return found

    def left(self) -> list[int]:
        """What of verl still runs."""
        own = [pid for leader in self.sessions for pid in session.members(leader)]
        return [*own, *self.joined.running()]


SIGNS = {"worker": "ray::WorkerDict", "engine": "agl_local.http.server"}
"""What is in the command lines of what Ray has started."""
VICTIMS = ("trainer", "child", "worker", "engine")


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def on_file(folder: Path) -> int:
    """Steps that have been reported."""
    file = folder / RUN / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def checkpointed(folder: Path) -> int:
    """Finished steps of the last whole checkpoint."""
    whole = (folder / RUN / "checkpoints").glob("global_step_*/job.json")
    return max((int(path.parent.name.rpartition("_")[2]) for path in whole), default=0)


def wait(what: str, there: Callable[[], Any], seconds: float) -> float:
    """Until ``there()``; the seconds it took. SystemExit when it does not come."""
    began = time.monotonic()
    while not there():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"{what}: not within {seconds:g} s")
        time.sleep(0.1)
    return time.monotonic() - began


def strike(victim: str, folder: Path, python: str, steps: int, joined: Joined) -> dict[str, Any]:
    """One life and its end: what was killed, how long the rest took to end, what was left."""
    before = on_file(folder)
    life = Life(folder, python, steps, joined)
    try:
        wait(
            f"steps of the life of the {victim}",
            lambda: life.process.poll() is not None or on_file(folder) >= before + BEGIN,
            PATIENCE,
        )
        if life.process.poll() is not None:
            raise SystemExit(f"the trainer ended with {life.process.returncode}; see {folder}/train.log")
        found = life.look()
        os.kill(found[victim], signal.SIGKILL)
        ended = wait("the trainer's end", lambda: life.process.poll() is not None, 60.0)
        gone = wait("the end of all of verl", lambda: not life.left(), 60.0)
    finally:
        if life.process.poll() is None:
            life.process.kill()
            life.process.wait()
        for leader in life.sessions:
            session.end(leader)
    told = {"victim": victim, "steps": on_file(folder), "checkpoint": checkpointed(folder),
            "status": life.process.returncode, "seconds_to_end": round(ended, 1),
            "seconds_to_none_left": round(ended + gone, 1)}  # fmt: skip
    console.print(told, soft_wrap=True, highlight=False)
    return told


def finish(folder: Path, python: str, steps: int, joined: Joined) -> None:
    """The last life, which nobody ends."""
    life = Life(folder, python, steps, joined)
    wait("the child", lambda: life.process.poll() is not None or "child" in life.look(), 60.0)
    wait("the end of the run", lambda: life.process.poll() is not None, 2 * PATIENCE)
    if life.process.returncode:
        raise SystemExit(f"the trainer ended with {life.process.returncode}; see {folder}/train.log")
    wait("the end of all of verl", lambda: not life.left(), 60.0)


async def account(folder: Path, struck: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """What the store holds afterwards: what is missing, what is there twice, what does not verify."""
    place = folder / RUN / "store.sqlite"
    store = SQLiteStore(place)
    try:
        told = await counts(store, [one["checkpoint"] for one in struck], steps)
        checked = await verify(await run_in(store, RunLocation(str(place), folder / RUN, RUN)))
    finally:
        await store.close()
    return {**told, "unverified": len(checked.differences)}


async def counts(store: SQLiteStore, checkpoints: list[int], steps: int) -> dict[str, int]:
    """Of a run of ``steps`` steps, whose lives left whole ``checkpoints`` when they were ended."""
    reports = [report.step for report in await store.query_steps(RUN)]
    (run,) = await store.query_runs()
    fingerprints = Counter(one.rollout_id for one in await store.query_fingerprints(RUN, limit=100_000))
    begun = [life["first_step"] for life in run.get("resumed", [])]
    return {
        "lost": len(set(range(steps)) - set(reports)),
        "doubled": len(reports) - len(set(reports)) + sum(n > 1 for n in fingerprints.values()),
        # a life begins where the last whole checkpoint of the one before ended: nothing finished runs again
        "begun_elsewhere": sum(a != b for a, b in zip(begun, checkpoints, strict=True)),
        "backwards": sum(later < earlier for earlier, later in pairwise([0, *begun])),
        "lives": len(begun) + 1,
    }


def logits(python: str, folder: Path) -> float:
    """Largest difference between transformers' logprobs and agl-local's, for the exported policy."""
    done = subprocess.run(
        [python, "-c", EQUAL_LOGITS, str(folder / RUN / "policy")], check=True, stdout=subprocess.PIPE
    )
    return float(done.stdout.splitlines()[-1])


def lives(folder: Path, python: str, victims: list[str], joined: Joined) -> dict[str, Any]:
    """Kill each, finish, count."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = BEGIN * len(victims) + 2
    struck = [strike(victim, folder, python, steps, joined) for victim in victims]
    finish(folder, python, steps, joined)
    return {
        "kills": len(struck),
        **asyncio.run(account(folder, struck, steps)),
        "logprob_difference": logits(python, folder),
        "ends": {one["victim"]: one["seconds_to_end"] for one in struck},
        "none_left": {one["victim"]: one["seconds_to_none_left"] for one in struck},
        "steps": steps,
        **joined.left(),
    }


def main() -> int:
    """Kill each in turn, finish, count."""
    parser = argparse.ArgumentParser(description="Kill -9 drill of the verl driver.")
    parser.add_argument("--victims", default=",".join(VICTIMS), help=f"some of {', '.join(VICTIMS)}")
    parser.add_argument("--store-kills", type=int, default=4, help="0: the store lives")
    parser.add_argument("--nodes", type=int, default=1, help="of a Ray cluster that the run joins")
    parser.add_argument("--keep", type=Path, help="keep the run's files here")
    asked = parser.parse_args()
    victims = asked.victims.split(",") if asked.victims else []
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    with tempfile.TemporaryDirectory(prefix="drill-verl-") as scratch, cluster(python, asked.nodes) as joined:
        told = lives(asked.keep or Path(scratch), python, victims, joined)
    if asked.store_kills:
        with tempfile.TemporaryDirectory(prefix="drill-verl-store-") as scratch:
            store = verl_store.drill(Path(scratch), python, asked.store_kills)
        told |= {"store_kills": sum(store["store_kills"].values()), "store": store}
    print(json.dumps(told))
    wrong = sum(told[name] for name in ("lost", "doubled", "begun_elsewhere", "backwards", "unverified"))
    wrong += bool(told.get("store", {}).get("wrong")) + (told.get("nodes_after", asked.nodes) != asked.nodes)
    return 0 if not wrong and told["logprob_difference"] < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
