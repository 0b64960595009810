"""The local engine as a rollout replica of verl: one Ray actor that owns the engine's process.

Agents reach the engine over the OpenAI API through the gateway, never through verl; the actor is there to
start the engine, to give it weights, and to end it. The first replicas have an engine, as many as the option
``engines`` says: further ranks train.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplica

from agl_verl.config.engines import key_of
from agl_verl.inside.cluster import here
from agl_verl.process.channel import SECRET, Channel

ENGINES: dict[str, Any] = {}
"""Address of each engine that the trainer's process has launched → its actor; read by the manager, which
lives there too.
"""


def server_name(rank: int) -> str:
    """Of the actor of a replica."""
    return f"agl_embedded_{rank}"


def place(device: str, number: int) -> str:
    """Where engine ``number`` is on ``device``: engines share the GPUs of this machine out among them."""
    if device != "cuda":
        return device
    import torch

    return f"cuda:{number % max(1, torch.cuda.device_count())}"


class EmbeddedServer:
    """The actor. ``serve``: of :class:`agl_local.http.process.EngineProcess`; ``None``: it has no engine.
    ``number``: of the engine.
    """

    def __init__(self, policy: str, serve: dict[str, Any] | None, number: int = 0) -> None:
        self._engine: Any = None
        self.address = ""
        if serve is not None:
            from agl_local.http.process import EngineProcess

            serve = {**serve, "device": place(serve.get("device", "cpu"), number)}
            self._engine = EngineProcess(Path(policy), **serve)
            self.address = self._engine.start()

    def where(self) -> str:
        """The engine's address, empty without one."""
        return self.address

    def well(self) -> None:
        """Raises RuntimeError if the engine's process has ended."""
        if self._engine is not None and not self._engine.alive():
            raise RuntimeError("the engine's process has ended")

    def load(self, state: bytes, version: int) -> int:
        """Serve these weights (safetensors) as ``version``; returns the version that is served."""
        if self._engine is None:
            return version
        from agl_local.policy.folder import parse_state

        with self._engine.weights.publish(parse_state(state)) as handover:
            return int(self._engine.update(handover, version))

    def abort_all_requests(self, *args: Any, **kwargs: Any) -> None:
        """verl is about to update: calls under way stand still where they are. Nothing is given up."""
        if self._engine is not None:
            self._engine.pause("hold")

    def resume_generation(self) -> None:
        """They go on with the weights that are served now."""
        if self._engine is not None:
            self._engine.resume()

    def nothing(self, *args: Any, **kwargs: Any) -> None:
        """What verl asks of servers that share a GPU with the trainer: the engine keeps its memory."""

    sleep = wake_up = clear_kv_cache = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


class EmbeddedReplica(RolloutReplica):  # type: ignore[misc]
    """See the module. The engine's settings are ``rollout.engine_kwargs.embedded``."""

    async def launch_servers(self) -> None:
        serve = dict(self.config.engine_kwargs["embedded"])
        engines = serve.pop("engines")
        serve["token"] = key_of(os.environ[SECRET])
        actor = ray.remote(num_cpus=0, max_concurrency=16)(EmbeddedServer).options(
            name=server_name(self.replica_rank), scheduling_strategy=here()
        )
        given = serve if self.replica_rank < engines else None
        if given is not None:
            Channel().ask("stage", what=f"training workers stand; starting engine {self.replica_rank}")
        server = actor.remote(str(self.model_config.path), given, self.replica_rank)
        address = await server.where.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, address.removeprefix("http://")
        if address:
            ENGINES[address] = server
