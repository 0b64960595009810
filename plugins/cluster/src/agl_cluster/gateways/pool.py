"""The gateways of a run that are processes of their own, as one gateway.

Each process listens on an address of its own, and an attempt keeps to one address. A change (a hold, a
release, a version, a route) is told to all processes, and is made once all have acknowledged it. Invariants:
after :meth:`GatewayProcesses.hold` and :meth:`~GatewayProcesses.drain` no process has a call at an engine; a
process that begins is told the present state before it serves; a process that dies is replaced, and counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from agentlightning.gateway.attempts import AttemptInfo
from agentlightning.gateway.base import RunGateway
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.pause import ALL
from agentlightning.gateway.settings import GatewaySection, agent_url, cannot_serve, parse_listen
from agentlightning.keys import Keys
from agentlightning.types import Call, UsageError
from agl_cluster.gateways.member import STARTS, Member
from agl_cluster.gateways.messages import (
    Begin,
    Close,
    Drain,
    Expect,
    GatewayState,
    Recorded,
    RouteState,
)

log = logging.getLogger(__name__)
BEAT: Final = 1.0
"""Seconds between two states that are told without a change: they carry versions and ask for counts."""


class GatewayProcesses(RunGateway):
    """``size`` gateways of one run. ``setup``: the pickled :class:`~.main.Setup` of a process."""

    def __init__(
        self,
        keys: Keys,
        settings: GatewaySection,
        size: int,
        setup: bytes,
        *,
        on_call: Callable[[Call], None] | None = None,
    ) -> None:
        super().__init__()
        self._keys, self._settings, self._size, self._setup = keys, settings, size, setup
        self._on_call = on_call
        self._hook_errors = 0
        self._held: set[str] = set()
        self._attempts: dict[str, AttemptInfo] = {}
        self._members: list[Member] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self._requests = itertools.count(1)
        self._died = 0
        self._earlier = Metrics()
        """Counts of processes that have ended."""
        self._stopping = False

    # ------------------------------------------------------------------------------------------- attempts
    def open_attempt(self, info: AttemptInfo) -> str:
        """Let an attempt call, and return its key. The process of its address reads the rest in the store."""
        if info.attempt_id in self._attempts:
            raise ValueError(f"attempt {info.attempt_id} is open already; close_attempt() ends it")
        self._attempts[info.attempt_id] = info
        for member in self._members:
            member.send(Expect(info))
        return self._keys.mint(info.rollout_id, info.attempt_id, run_id=info.run_id, fence=info.fence)

    async def close_attempt(self, attempt_id: str, *, grace: float = 0.0) -> None:
        """Revoke the key. Calls under way get ``grace`` seconds; then they are cancelled and recorded."""
        self._attempts.pop(attempt_id, None)
        await self._ask_all(lambda number: Close(number, attempt_id, grace))

    # ------------------------------------------------------------------------------------- weight updates
    async def hold(self, policy: str = ALL) -> None:
        """Make new calls of a policy wait; on return every process has acknowledged it."""
        self._held.add(policy)
        await self.settle()

    async def release(self, policy: str = ALL) -> None:
        """Let calls of the policy go on, by the version that is served now."""
        self._held.discard(policy)
        await self.settle()

    async def drain(self, timeout: float | None = None) -> bool:
        """Wait until no call is at an engine. Return False if ``timeout`` seconds did not suffice."""
        return all(await self._ask_all(lambda number: Drain(number, timeout)))

    async def settle(self) -> None:
        """Return once every process serves by the present state, and has told its counts."""
        self._changed()
        number = self._number
        await asyncio.gather(*(member.acknowledge(number) for member in self._members))

    async def _ask_all(self, message: Callable[[int], Close | Drain]) -> list[bool]:
        asked = [(member, next(self._requests)) for member in self._members]
        return await asyncio.gather(*(member.ask(number, message(number)) for member, number in asked))

    # ------------------------------------------------------------------------------------------ lifecycle
    async def start(self) -> str:
        """Bind the addresses and begin the processes; return the first base URL."""
        if self._members:
            raise RuntimeError("the gateways are started already")
        try:
            for number in range(self._size):
                self._members.append(self._bind(number))
        except UsageError:
            for member in self._members:
                member.listener.close()
            self._members = []
            raise
        self._tasks = [asyncio.create_task(self._keep(member)) for member in self._members]
        self._tasks.append(asyncio.create_task(self._beat()))
        return self.url

    def _bind(self, number: int) -> Member:
        """Listen on the address of process ``number``: its port is that of the first plus ``number``."""
        settings = self._settings
        host, port = parse_listen(settings.listen, settings.advertise, guarded=self._keys.shared)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        port = port and port + number
        try:
            listener = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise cannot_serve(host, port, error) from error
        url = agent_url(host, listener.getsockname()[1], settings.advertise)
        return Member(number, listener, url, self._begin, self._take)

    async def _keep(self, member: Member) -> None:
        """Begin a process again whenever it ends."""
        short = 0
        while not self._ending():
            short = 0 if await member.live() else short + 1
            _add(self._earlier, member.counts)
            member.counts = {}
            if self._ending():
                return
            self._died += 1
            if short >= STARTS:
                return await self._give_up(member)
            log.warning("the gateway process at %s has ended; another takes its place", member.url)
            await asyncio.sleep(min(0.05 * 2**short, 1.0) if short else 0)

    def _ending(self) -> bool:
        return self._stopping

    async def _give_up(self, member: Member) -> None:
        """Leave an address whose processes do not live: its attempts fail, and new ones go elsewhere."""
        log.error("the gateway at %s is given up: %d processes ended at once", member.url, STARTS)
        member.given_up = True
        member.listener.close()
        if self.moved is not None and self.urls:
            await self.moved()

    async def _beat(self) -> None:
        """Tell versions and ask for counts; kill processes that do not answer."""
        while True:
            await asyncio.sleep(BEAT)
            self._changed()
            for member in self._members:
                member.kill_if_silent()

    async def stop(self) -> None:
        """Stop serving. Calls under way are cancelled, and recorded."""
        self._stopping = True
        if not self._tasks:
            return
        *keeping, beat = self._tasks
        self._tasks = []
        beat.cancel()
        for member in self._members:
            await member.end()
        _, late = await asyncio.wait(keeping, timeout=15.0)
        for member in self._members if late else ():
            member.kill()
        if late:
            await asyncio.wait(late)
        for member in self._members:
            member.listener.close()
        with suppress(asyncio.CancelledError):
            await beat

    # -------------------------------------------------------------------------------------- what is served
    @property
    def urls(self) -> Sequence[str]:
        """Base URLs of the gateways, each once; a balancer before all of them is one URL."""
        if not self._members:
            raise RuntimeError("the gateway is not started: await start()")
        return list(dict.fromkeys(member.url for member in self._members if not member.given_up))

    @property
    def url(self) -> str:
        """The first base URL."""
        if not (urls := self.urls):
            raise RuntimeError("no gateway process lives: the log says why")
        return urls[0]

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that live."""
        return [member.pid for member in self._members if member.pid is not None]

    @property
    def metrics(self) -> Metrics:
        """The counters of all processes, those that have ended included, when they last told them."""
        found = Metrics()
        for counts in (self._earlier.as_dict(), *(member.counts for member in self._members)):
            _add(found, counts)
        found.hook_errors += self._hook_errors
        return found

    def accounts(self) -> dict[str, int]:
        """Processes that ended unasked, and addresses that were given up."""
        return {
            "gateways-ended": self._died,
            "gateways-given-up": sum(member.given_up for member in self._members),
        }

    # ------------------------------------------------------------------------------------------- messages
    def _state(self) -> GatewayState:
        return GatewayState(
            number=self._number,
            routes=[RouteState.of(route) for route in self.routes.values()],
            sampling=self.sampling,
            held=sorted(self._held),
        )

    def _changed(self) -> None:
        """Tell all processes the present state."""
        self._number += 1
        state = self._state()
        for member in self._members:
            member.send(state)

    def _begin(self) -> Begin:
        return Begin(setup=self._setup, state=self._state(), attempts=list(self._attempts.values()))

    def _take(self, said: Recorded) -> None:
        """Pass on a call that is on record."""
        if self._on_call is None:
            return
        try:
            self._on_call(said.call)
        except Exception:
            self._hook_errors += 1
            if self._hook_errors == 1:
                log.exception("on_call failed; further failures are only counted")


def _add(metrics: Metrics, counts: Mapping[str, Any]) -> None:
    """Add the counters of a gateway, as :meth:`Metrics.as_dict` returns them; none are given as ``{}``."""
    for name, n in counts.items():
        if isinstance(n, Mapping):
            getattr(metrics, name).update(n)
        else:
            setattr(metrics, name, getattr(metrics, name) + n)
