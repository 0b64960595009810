"""Ray nodes on this machine, for whoever asks: in a session of their own, which ends with them.

    with nodes(python, 2) as (address, session): …          (python: of an environment that has Ray)

A machine has one file in which Ray writes where the last cluster is, and every later ``ray.init()`` joins it;
so these nodes have a folder of their own, and ports that the system chooses.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agl_verl.process import session

CPUS = 24
"""Logical CPUs of each node: what Ray's and verl's own actors reserve and do not use."""


@contextlib.contextmanager
def nodes(python: str, count: int, gpus: int = 1) -> Iterator[tuple[str, int]]:
    """Address of a cluster of ``count`` nodes, each with ``gpus`` logical GPUs, and the session it is."""
    folder = tempfile.mkdtemp(prefix="agl-ray-")  # sockets are below it: their paths must be short
    environment = {**os.environ, "RAY_TMPDIR": folder, "VERL_PLATFORM": "cpu"}
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [python, __file__, str(count), str(gpus)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        lines = (line.decode().split() for line in process.stdout)
        address = next((words[1] for words in lines if words[:1] == ["address"]), None)
        if address is None:
            raise RuntimeError(f"the Ray nodes did not start; their process ended with {process.wait()}")
        yield address, process.pid
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        session.end(process.pid)
        process.stdout.close()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def of_a_run(leader: int) -> list[int]:
    """Processes of a run in the nodes that live in the session of ``leader``."""
    members = session.members(leader)
    return [pid for pid in members if any(sign in command_line(pid) for sign in OF_A_RUN)]


def left(leader: int, patience: float = 20.0) -> dict[str, int]:
    """Nodes that stand in the session of ``leader``, and processes of a run that are still in them, once
    those that end by themselves have had ``patience`` seconds.
    """
    limit = time.monotonic() + patience
    while (runs := of_a_run(leader)) and time.monotonic() < limit:
        time.sleep(0.1)
    raylets = ["raylet/raylet" in command_line(pid) for pid in session.members(leader)]
    return {"nodes_after": sum(raylets), "workers_left": len(runs)}


OF_A_RUN = ("ray::WorkerDict", "ray::TaskRunner", "ray::EmbeddedServer", "agl_local.http.server")
"""What is in the command lines of what a run has in a cluster."""


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended
        return ""


class Joined:
    """A Ray cluster that a run joins; none, if it starts its own."""

    def __init__(self, address: str | None = None, leader: int = 0, count: int = 1) -> None:
        self._leader, self._count = leader, count
        own = {"nodes": count, "ranks": count, "ray_address": address}
        self.options: dict[str, Any] = own if address else {}
        """Of the driver."""
        self.settings = {f"backend.options.{key}": value for key, value in self.options.items()}
        """The same, of a configuration."""

    def running(self) -> list[int]:
        """Processes of the run in the cluster."""
        return of_a_run(self._leader) if self._leader else []

    def left(self) -> dict[str, Any]:
        """The cluster after the run: nodes that stand, and processes of the run that do not end."""
        if not self._leader:
            return {}
        return {"nodes": self._count, **left(self._leader)}


@contextlib.contextmanager
def cluster(python: str, count: int) -> Iterator[Joined]:
    """One of ``count`` nodes; for one there is none, and the run starts its own."""
    if count == 1:
        yield Joined()
        return
    with nodes(python, count) as (address, leader):
        yield Joined(address, leader, count)


def serve(count: int, gpus: int) -> None:
    """Start the nodes, say where they are, and end them when standard input ends."""
    from ray.cluster_utils import Cluster

    shape = {"num_cpus": CPUS, "num_gpus": gpus, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=shape)
    for _ in range(count - 1):
        cluster.add_node(num_cpus=CPUS, num_gpus=gpus)
    print("address", cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
