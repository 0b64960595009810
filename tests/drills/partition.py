"""Network partitions between a runner and store, gateway, or both: shorter and longer than a lease.

Part of `make drills`; by itself: `python tests/drills/partition.py --cuts 6`. The drill runs in a network
namespace of its own (`unshare --net`), and the runner `far` in another, joined to it by a pair of virtual
interfaces; both go when it ends. A cut drops frames without a word, by a wrong hardware address: what the
runner sends to the store, or to the gateway, or to both, or what both answer, so that a write is done and its
acknowledgement is lost. A second runner, `near`, is never cut off and takes over what `far` had.

Afterwards every call that an agent was answered is in the store (else `lost`), once (else `doubled`), every
rollout has succeeded, in one attempt; no call of an attempt was recorded after a later attempt had begun
(`foreign_access`). Late writes of `far` must have been refused and counted, and attempts that became
unresponsive tried again. The last line is one JSON object; status 2: namespaces are not permitted here.
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
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agl_testing.scripted import ScriptedModelServer
from contract.access import TOKEN
from drills.core import AGL, console
from drills.light import CONFIG, END, Load, Stage, environment, journalled, rollout_is_wrong

from agentlightning.plugins.stores import open_store
from agentlightning.store import Store
from agl_cluster.store.client import StoreClient

STORE, GATEWAY, FAR = "10.231.0.1", "10.231.0.3", "10.231.0.2"
HERE_END, FAR_END = "agl-here", "agl-far"
NOBODY = "02:00:00:00:00:01"
"""A hardware address that no interface here has."""
LEASE = CONFIG.unresponsive_seconds or 3.0
WAYS = ("to-store", "to-gateway", "to-both", "answers")
INSIDE = "--inside"


def ip(*words: str, inside: int | None = None) -> None:
    """Run `ip`, in the namespace of process ``inside`` if one is given."""
    enter = [] if inside is None else ["nsenter", "--net", "--target", str(inside)]
    subprocess.run([*enter, "ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Network:
    """Two namespaces and the line between them. ``far``: the process that keeps the second one."""

    far: int

    def build(self) -> None:
        """Make the line."""
        ip("link", "set", "lo", "up")
        ip("link", "add", HERE_END, "type", "veth", "peer", "name", FAR_END, "netns", str(self.far))
        for address in (STORE, GATEWAY):
            ip("address", "add", f"{address}/24", "dev", HERE_END)
        ip("link", "set", HERE_END, "up")
        ip("link", "set", "lo", "up", inside=self.far)
        ip("address", "add", f"{FAR}/24", "dev", FAR_END, inside=self.far)
        ip("link", "set", FAR_END, "up", inside=self.far)

    def _ends(self, way: str) -> list[tuple[str, str, int | None]]:
        """Whose frames to whom are dropped: address, interface and namespace."""
        to = {"to-store": (STORE,), "to-gateway": (GATEWAY,), "to-both": (STORE, GATEWAY)}
        if way == "answers":
            return [(FAR, HERE_END, None)]
        return [(address, FAR_END, self.far) for address in to[way]]

    def cut(self, way: str) -> None:
        """Drop frames from now on."""
        for address, end, inside in self._ends(way):
            ip("neigh", "replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", end, inside=inside)

    def heal(self, way: str) -> None:
        """Let them pass again."""
        for address, end, inside in self._ends(way):
            ip("neigh", "del", address, "dev", end, inside=inside)


@dataclass
class Line(Stage):
    """Store and gateway here, a runner at each end of the line."""

    far: int = 0

    def url(self, role: str) -> str:
        """Return where a role listens."""
        return f"http://{STORE}:4747" if role == "store" else f"http://{GATEWAY}:8001"

    def command(self, role: str) -> list[str]:
        """Return what a person would type."""
        store = self.url("store")
        if role == "store":
            return [*AGL, "store", self.place, "--host", STORE, "--port", "4747"]
        if role == "gateway-1":
            listen = f"{GATEWAY}:8001"
            engine = ["--upstream", self.upstream, "--model", "scripted"]
            return [*AGL, "gateway", "--listen", listen, "--store", store, *engine]
        enter = ["nsenter", "--net", "--target", str(self.far)] if role == "runner-1" else []
        agent = ["--agent", "drills.talker:talk", "--run", "light"]
        return [*enter, *AGL, "runner", "--store", store, *agent, "--concurrency", "6"]


async def drill(stage: Line, network: Network, cuts: int, seed: int) -> dict[str, Any]:
    """Start everything, cut and heal, wait for the rest, and account."""
    chance = random.Random(f"partition/{seed}")
    for role in ("store", "gateway-1", "runner-1", "runner-2"):
        stage.start(role)
        if role in ("store", "gateway-1"):
            await stage.at_work(role)
    store = StoreClient(stage.url("store"), TOKEN, patience=120.0)
    load, stop = Load(store, [stage.url("gateway-1")]), asyncio.Event()
    loading = asyncio.create_task(load.run(stop))
    made: Counter[str] = Counter()
    try:
        for role in ("runner-1", "runner-2"):
            await stage.at_work(role)
        for number in range(cuts):
            way = WAYS[number % len(WAYS)]
            long = (number // len(WAYS) + number) % 2 == 0
            seconds = chance.uniform(1.8, 2.5) * LEASE if long else chance.uniform(0.2, 0.6) * LEASE
            network.cut(way)
            await asyncio.sleep(seconds)
            network.heal(way)
            made[f"{way} {'longer' if long else 'shorter'}"] += 1
            console.print(f"  cut {number + 1}: {way} for {seconds:.1f} s", highlight=False)
            await asyncio.sleep(chance.uniform(2.0, 4.0))
            if loading.done():
                loading.result()
        stop.set()
        await asyncio.wait_for(loading, END)
        await store.close()
    finally:
        loading.cancel()
        stage.close()
    return {"cuts": cuts, **await account(stage, load.rollouts), "cuts_by": dict(made)}


async def account(stage: Line, rollouts: list[str]) -> dict[str, Any]:
    """Compare what was acknowledged with what the store holds."""
    store = open_store(stage.place)
    try:
        calls = await journalled(store, stage.journal)
        wrong = list(filter(None, [await rollout_is_wrong(store, one) for one in rollouts]))
        again = [await attempts_again(store, one) for one in rollouts]
        counted = await store.counts()
    finally:
        await store.close()
    for line in [*calls["lines"], *wrong][:20]:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    unfinished = sum("no success" in line for line in wrong)
    refused = counted.get("refused", {})
    return {
        "lost": calls["lost"] + unfinished,
        "doubled": calls["doubled"] + len(wrong) - unfinished,
        "foreign_access": sum(late for _, late in again),
        "rollouts": len(rollouts),
        "calls": calls["calls"],
        "tried_again": sum(tries for tries, _ in again),
        "refused": sum(refused.values()),
        "refused_by": refused,
    }


async def attempts_again(store: Store, rollout_id: str) -> tuple[int, int]:
    """Return how often a rollout was tried again, and how many calls an attempt recorded after the next had
    begun.
    """
    attempts = sorted(await store.query_attempts(rollout_id), key=lambda one: one.sequence_id)
    late = 0
    for one, following in pairwise(attempts):
        calls = await store.query_calls(rollout_id, one.attempt_id)
        late += sum((call.start_time or 0.0) > following.start_time for call in calls)
    return len(attempts) - 1, late


def inside(given: argparse.Namespace) -> int:
    """Drill, in a namespace of its own."""
    folder = Path(tempfile.mkdtemp(prefix="agl-partition-"))
    environment(folder)
    keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    keep, began = True, time.monotonic()
    try:
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{keeper.pid}/ns/net") == own:
            time.sleep(0.01)
        network = Network(keeper.pid)
        network.build()
        with ScriptedModelServer(lambda body: "ok") as model:
            stage = Line(folder, str(folder / "store.sqlite"), model.url, far=keeper.pid)
            found = asyncio.run(drill(stage, network, given.cuts, given.seed))
        found |= {"seed": given.seed, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(found), flush=True)
        wrong = any(found[name] for name in ("lost", "doubled", "foreign_access"))
        idle = not all(found[name] for name in ("rollouts", "calls", "tried_again", "refused"))
        keep = given.keep or wrong or idle
        return int(wrong or idle)
    finally:
        keeper.kill()
        keeper.wait()
        if keep:
            console.print(f"files: {folder}", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def permitted() -> str | None:
    """Return why this process may not make namespaces and lines between them; ``None``: it may."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    test = "ip link set lo up && ip link add agl-a type veth peer name agl-b"
    done = subprocess.run(["unshare", "--net", "sh", "-c", test], capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip() or "unshare --net failed")


def main(argv: list[str] | None = None) -> int:
    """Drill in a new network namespace. Status 2: none may be made here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the files, and say where")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.inside:
        return inside(given)
    if (why := permitted()) is not None:
        print(f"no partition can be made here: {why}", file=sys.stderr)
        return 2
    words = [*(sys.argv[1:] if argv is None else argv), INSIDE]
    return subprocess.run(["unshare", "--net", sys.executable, __file__, *words]).returncode


if __name__ == "__main__":
    raise SystemExit(main())
