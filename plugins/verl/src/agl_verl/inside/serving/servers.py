"""verl's own vLLM and SGLang servers before our gateway: what ours add to verl's classes.

verl launches its servers, gives them weights and puts them to sleep, as ever. Its replica, as we register it,
tells the driver where their OpenAI endpoints are, and of the times in which they finish no call: from an
abort, or sleep, until they generate again. Agents' calls come through the gateway, never through verl; which
version answers is the driver's to say, since it closes the gateway for that time. Invariant: no call sets out
for a server that aborts, sleeps or gets weights.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from agl_verl.config.engines import key_of
from agl_verl.inside.serving.replica import ENGINES
from agl_verl.process.channel import ADDRESS, SECRET, Channel

KEY = "VLLM_API_KEY"
"""Variable from which vLLM reads the key that it asks for."""
STILL: set[int] = set()
"""Ranks of the replicas of this process that finish no call now."""


class Server:
    """Goes before a server class of verl's: the actor of one node of a replica. ``key``: what it asks for."""

    node_rank: int
    _server_task: asyncio.Task[Any]

    def __init__(self, *args: Any, key: str | None = None, **given: Any) -> None:
        if key is not None:
            os.environ[KEY] = key
        super().__init__(*args, **given)

    def well(self) -> None:
        """Raises RuntimeError if what answers agents has ended. (Other nodes have nobody to answer.)"""
        if self.node_rank == 0 and self._server_task.done():
            raise RuntimeError("the server has ended")


class Keeping:
    """Goes before verl's class of vLLM servers: with ``engine_kwargs.vllm.in_flight=keep`` calls stand still
    while weights change, as far as they are, and go on afterwards. vLLM computes their keys and values again,
    by the new weights.
    """

    node_rank: int
    engine: Any
    keeps = False

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        self.keeps = engine_kwargs.pop("in_flight", "abort") == "keep"  # vLLM has no such argument
        super()._preprocess_engine_kwargs(engine_kwargs)  # type: ignore[misc]

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> Any:
        """As verl does, or pause. ``reject_request``: nothing will resume this server soon."""
        if not self.keeps or reject_request:
            return await super().abort_all_requests(reset_prefix_cache, reject_request)  # type: ignore[misc]
        if self.node_rank == 0:
            await self.engine.pause_generation(mode="keep", clear_cache=reset_prefix_cache)
        return {"aborted_count": 0, "request_ids": []}


class Keyed:
    """An actor class whose actors get the key with their arguments; the rest is Ray's. Among the variables of
    a runtime environment it would be in Ray's logs.
    """

    def __init__(self, actor: Any, key: str) -> None:
        self._actor, self._key = actor, key

    def options(self, **given: Any) -> Keyed:
        """As the actor class does."""
        return Keyed(self._actor.options(**given), self._key)

    def remote(self, *args: Any, **given: Any) -> Any:
        """As the actor class does."""
        return self._actor.remote(*args, key=self._key, **given)


class Announced:
    """Goes before a replica class of verl's. ``server``: the class of its actors; ``keyed``: whether they ask
    for the key.
    """

    server: type
    keyed: bool
    is_reward_model: bool
    is_teacher_model: bool
    replica_rank: int
    _server_address: str
    _server_handle: Any

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        if self._ours:
            actor = ray.remote(self.server)
            self.server_class = Keyed(actor, key_of(os.environ[SECRET])) if self.keyed else actor

    @property
    def _ours(self) -> bool:
        """Whether it serves the policy: verl uses such replicas for its reward models and teachers, too."""
        return not (self.is_reward_model or self.is_teacher_model)

    async def launch_servers(self) -> None:
        """As verl does; then the manager finds the address in ``ENGINES``, and tells it."""
        await super().launch_servers()  # type: ignore[misc]
        if self._ours:
            ENGINES[f"http://{self._server_address}"] = self._server_handle

    async def sleep(self) -> None:
        await self._still()
        await super().sleep()  # type: ignore[misc]

    async def abort_all_requests(self, reject_request: bool = False) -> Any:
        await self._still()
        return await super().abort_all_requests(reject_request=reject_request)  # type: ignore[misc]

    async def resume_generation(self) -> None:
        await super().resume_generation()  # type: ignore[misc]
        await self._again()

    async def wake_up(self) -> None:
        await super().wake_up()  # type: ignore[misc]
        await self._again()

    async def _still(self) -> None:
        """Have the gateway hold calls, before this replica stops."""
        if self._ours:
            STILL.add(self.replica_rank)
            await asyncio.to_thread(Channel().ask, "pause")

    async def _again(self) -> None:
        """Have it let them go, when the last replica generates again."""
        if self._ours and STILL:
            STILL.discard(self.replica_rank)
            if not STILL:
                await asyncio.to_thread(Channel().ask, "resume")


def register(name: str, replica: Callable[[], type[RolloutReplica]]) -> None:
    """Have verl take the replica class that ``replica`` imports for its own ``name``, in runs of our driver.

    Its own names stay: verl compares them (its weights' adapter, its client, its checks).
    """
    theirs = RolloutReplicaRegistry._registry[name]

    def load() -> type[RolloutReplica]:
        base = theirs()  # it also prepares what the import needs
        return replica() if ADDRESS in os.environ else base

    RolloutReplicaRegistry.register(name, load)
