"""A gateway process of a run: it serves what the run tells it, and ends with the run.

Started as ``python -m agl_cluster.gateways.main CONTROL LISTENER``, two numbers of file
descriptors that the run lends.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentlightning.child_environment import hide_secrets
from agentlightning.gateway.route import Upstream
from agentlightning.gateway.settings import CallSection, GatewaySection
from agentlightning.keys import Keys
from agentlightning.plugins.stores import open_store
from agentlightning.specs import CallGuard
from agentlightning.store.base import Store
from agentlightning.train.config import fields as config_fields
from agl_cluster.gateways.messages import (
    Acknowledged,
    Begin,
    Channel,
    Close,
    Done,
    Drain,
    End,
    Expect,
    GatewayState,
    Recorded,
    RouteState,
    ToProcess,
)
from agl_cluster.gateways.watched import WatchedGateway
from agl_cluster.store.client import StoreClient


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a process needs to begin; it is pickled."""

    secret: bytes
    shared: bool
    """Whether the secret was chosen, and other processes have it too."""
    store: str
    """URL of the store."""
    token: str | None
    """The store's token; ``None``: that of the environment."""
    settings: GatewaySection
    calls: CallSection
    guards: Sequence[CallGuard] = ()
    """What admits and counts calls; each process has a copy."""
    watched: bool = False
    """The run is told of each call that is on record."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that the process does not inherit, because they are secret."""


class GatewayProcess:
    """The gateway, and what the run said last."""

    def __init__(self, channel: Channel[ToProcess], setup: Setup) -> None:
        self._channel = channel
        keys = Keys(setup.secret)
        keys.shared = setup.shared
        self.store = _store(setup)
        for guard in setup.guards:
            guard.join(self.store)
        tell = (lambda call: channel.send(Recorded(call))) if setup.watched else None
        self.gateway = WatchedGateway(
            self.store, keys, setup.settings, setup.calls, on_call=tell, guards=setup.guards
        )
        self._routes: dict[str, RouteState] = {}
        self._versions: dict[str, int | None] = {}
        self._sampling: set[str] = set()
        self._held: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def apply(self, state: GatewayState) -> None:
        """Serve by ``state`` from now on. Nothing is awaited that takes time: a hold holds at once."""
        gateway = self.gateway
        for policy in set(state.held) - self._held:
            await gateway.hold(policy)
        for policy in self._routes.keys() - {route.policy for route in state.routes}:
            gateway.remove_route(policy)
            del self._routes[policy]
        for route in state.routes:
            self._apply_route(route)
        for policy in self._sampling - state.sampling.keys():
            gateway.policy_sampling(policy, None)
        for policy, sampling in state.sampling.items():
            gateway.policy_sampling(policy, sampling)
        for policy in self._held - set(state.held):
            await gateway.release(policy)
        self._sampling, self._held = set(state.sampling), set(state.held)

    def acknowledge(self, number: int) -> None:
        """Say that the process serves by state ``number``."""
        self._channel.send(Acknowledged(number, self.gateway.metrics.as_dict()))

    def _apply_route(self, told: RouteState) -> None:
        """Open a route; one that is known keeps what it has learned of its engine."""
        self._versions[told.policy] = told.version
        known = self._routes.get(told.policy)
        self._routes[told.policy] = told
        if known is not None and _fixed(known) == _fixed(told):
            return
        fields = _fixed(told)
        del fields["versioned"]
        if told.settings is not None:
            fields["settings"] = config_fields().sections["gateway"].model_validate(told.settings)
        version = (lambda policy=told.policy: self._versions[policy]) if told.versioned else None
        self.gateway.add_route(Upstream(version=version, **fields))

    async def serve(self, state: GatewayState, listener: socket.socket) -> None:
        """Serve until the run says so, or is gone."""
        await self.apply(state)
        await self.gateway.start(listener)
        self.acknowledge(state.number)
        while not isinstance(message := await self._channel.receive(), End | None):
            await self._take(message)
        await self.gateway.stop()
        self.acknowledge(sys.maxsize)
        await self._channel.flush()
        await self.store.close()

    async def _take(self, message: ToProcess) -> None:
        if isinstance(message, GatewayState):
            await self.apply(message)
            self.acknowledge(message.number)
        elif isinstance(message, Expect):
            self.gateway.expect_attempt(message.info)
        elif isinstance(message, Close | Drain):
            task = asyncio.create_task(self._do(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _do(self, message: Close | Drain) -> None:
        result = True
        try:
            if isinstance(message, Close):
                await self.gateway.close_attempt(message.attempt_id, grace=message.grace)
            else:
                result = await self.gateway.drain(message.timeout)
        finally:
            self._channel.send(Done(message.number, result))


def _fixed(route: RouteState) -> dict[str, Any]:
    """The fields of a route but its version."""
    return {name: getattr(route, name) for name in route.__struct_fields__ if name != "version"}


def _store(setup: Setup) -> Store:
    if setup.token is not None:
        return StoreClient(setup.store, setup.token)
    store = open_store(setup.store)
    store.act_as("trainer")
    return store


async def run(control: int, listener: int) -> None:
    """Serve one run."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=control))
    channel: Channel[ToProcess] = Channel(reader, writer, ToProcess)
    begin = await channel.receive()
    if isinstance(begin, Begin):
        setup: Setup = pickle.loads(begin.setup)
        os.environ.update(setup.variables)
        hide_secrets()
        process = GatewayProcess(channel, setup)
        for info in begin.attempts:
            process.gateway.expect_attempt(info)
        await process.serve(begin.state, socket.socket(fileno=listener))
    channel.close()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2])))
