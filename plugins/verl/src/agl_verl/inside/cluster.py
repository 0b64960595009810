"""What a Ray of somebody else's needs to be told, and is asked before it gets work.

Its workers inherit nothing from this process. verl's task runner, which asks the driver for rows, and the
engine, which the gateway calls, live on this machine: both are reached over loopback. The channel's secret
goes to the task runner alone, over Ray's own connection, and into no log.
"""

from __future__ import annotations

import os
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agl_verl.inside.learning.tap import TAP
from agl_verl.process.channel import ADDRESS, SECRET
from agl_verl.process.cluster import cpus

WORKERS = ("VERL_PLATFORM", TAP)
"""Variables that every worker needs when it imports verl."""
RUNNER = (ADDRESS, SECRET, "VERL_FILE_LOGGER_PATH")
"""Variables that the task runner alone needs."""
QUEUE = ("TransferQueueController", "transfer_queue")
"""Name and namespace of the actor that verl's rows pass through; a cluster has one."""
PATIENCE = 30.0
"""Seconds that a run that was killed may take to vanish from the cluster."""


class NotThis(RuntimeError):
    """A cluster in which this run cannot be; the message says what to do."""


def told(config: Any) -> Any:
    """verl's ``config``, with what the workers of a cluster that we join must know."""
    from omegaconf import OmegaConf

    if joins(config):
        given = {name: os.environ[name] for name in WORKERS if name in os.environ}
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", given, force_add=True)
    return config


def joins(config: Any) -> bool:
    """Whether the cluster is somebody else's."""
    return str(config.ray_kwargs.ray_init.get("address", "local")) != "local"


def here() -> NodeAffinitySchedulingStrategy:
    """For an actor that must be on this machine."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


class Kept:
    """verl's task runner, kept: the engine must serve until the driver is done."""

    def __init__(self, runner: Any, config: Any, **given: Any) -> None:
        self._runner, self._config, self._given = runner, config, given
        self.handle: Any = None

    def remote(self) -> Any:
        """As the actor class does. Raises NotThis."""
        if joins(self._config):
            check(self._config.trainer.nnodes, self._config.trainer.n_gpus_per_node)
        self.handle = self._runner.options(scheduling_strategy=here(), **self._given).remote()
        given = {name: os.environ[name] for name in RUNNER if name in os.environ}
        ray.get(self.handle.__ray_call__.remote(equip, given))
        return self.handle

    def options(self, **given: Any) -> Kept:
        """As the actor class does, but that it is this one which keeps the runner."""
        self._given |= given
        return self


def equip(actor: Any, variables: dict[str, str]) -> None:
    """Runs in the task runner's process."""
    os.environ.update(variables)


def check(nodes: int, per_node: int) -> None:
    """Raises NotThis if the cluster is too small, or another run is in it: their rows would be mixed."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fit = sum(node.get("GPU", 0) >= per_node for node in alive)
    if fit < nodes:
        raise NotThis(
            f"{nodes} nodes with {per_node} GPUs each are wanted (on a CPU logical ones: "
            f"`ray start --num-gpus`); of the cluster's {len(alive)} nodes {fit} have them"
        )
    there, wanted = sum(node.get("CPU", 0) for node in alive), cpus(nodes * per_node)
    if there < wanted:
        raise NotThis(f"the cluster has {there:g} logical CPUs; {wanted} are wanted (`ray start --num-cpus`)")
    limit = time.monotonic() + PATIENCE
    while taken():
        if time.monotonic() > limit:
            raise NotThis("another run of verl is in this cluster; one at a time can be")
        time.sleep(0.5)


def taken() -> bool:
    """Whether verl's queue is there already."""
    name, namespace = QUEUE
    try:
        ray.get_actor(name, namespace=namespace)
    except ValueError:
        return False
    return True
