"""One gateway process of a run, as the run sees it: begun, told, watched, and begun again when it dies.

The run binds the listening socket and lends it to the process, so a process that takes the place of a dead
one has the same address, and connections made meanwhile wait for it. Invariant: a process that is not begun,
or does not answer for :data:`PATIENCE` seconds, is dead before anything waits for it no longer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from agl_cluster.gateways.messages import (
    Acknowledged,
    Begin,
    Channel,
    Done,
    End,
    FromProcess,
    Recorded,
    ToProcess,
)

log = logging.getLogger(__name__)
PATIENCE: Final = 20.0
"""Seconds in which a process must answer, its start included; then it is killed."""
STARTS: Final = 5
"""Lives in a row of less than :data:`SHORT_LIFE` seconds, after which an address is given up."""
SHORT_LIFE: Final = 1.0


class Member:
    """A gateway's address and the process behind it. ``begin`` makes the first message of each life; ``take``
    gets the calls that the process has put on record.
    """

    def __init__(
        self,
        number: int,
        listener: socket.socket,
        url: str,
        begin: Callable[[], Begin],
        take: Callable[[Recorded], None],
    ) -> None:
        self.number, self.listener, self.url = number, listener, url
        self.counts: dict[str, Any] = {}
        """Its counters, as it told them last."""
        self.lives = 0
        self.given_up = False
        self._begin, self._take = begin, take
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[FromProcess] | None = None
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._acks: dict[int, asyncio.Future[bool]] = {}
        self._acknowledged = -1
        self._heard = 0.0
        self._began = 0.0

    # ------------------------------------------------------------------------------------------- its lives
    async def live(self) -> bool:
        """Run the process until it ends. Return whether it lived long enough to be begun again."""
        ours, theirs = socket.socketpair()
        try:
            fds = theirs.fileno(), self.listener.fileno()
            command = [sys.executable, "-m", "agl_cluster.gateways.main", *map(str, fds)]
            self._process = subprocess.Popen(
                command, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        channel: Channel[FromProcess] = Channel(reader, writer, FromProcess)
        self.lives += 1
        self._heard = self._began = time.monotonic()
        self._acknowledged = -1
        channel.send(self._begin())
        self._channel = channel
        try:
            while (message := await channel.receive()) is not None:
                self._heard = time.monotonic()
                self._hear(message)
        finally:
            self._channel = None
            channel.close()
            await self._reap()
            self._release_waiting()
        return time.monotonic() - self._began > SHORT_LIFE

    def _hear(self, message: FromProcess) -> None:
        if isinstance(message, Acknowledged):
            self.counts, self._acknowledged = message.counts, message.number
            for number in [n for n in self._acks if n <= message.number]:
                _resolve(self._acks.pop(number), True)
        elif isinstance(message, Done):
            if (waiting := self._waiting.pop(message.number, None)) is not None:
                _resolve(waiting, message.result)
        else:
            self._take(message)

    async def _reap(self) -> None:
        """Wait for the process; kill it if it goes on without its connection."""
        assert self._process is not None
        process = self._process
        for _ in range(100):
            if process.poll() is not None:
                return
            await asyncio.sleep(0.02)
        self.kill()
        await asyncio.to_thread(process.wait)

    def _release_waiting(self) -> None:
        """Let go of everybody who waits for a process that is dead: none of its calls is under way."""
        for future in [*self._waiting.values(), *self._acks.values()]:
            _resolve(future, True)
        self._waiting.clear()
        self._acks.clear()

    def kill(self) -> None:
        """SIGKILL; :meth:`live` sees the end."""
        if self._process is not None and self._process.poll() is None:
            log.warning("the gateway process at %s is killed: it does not answer", self.url)
            os.kill(self._process.pid, signal.SIGKILL)

    def kill_if_silent(self) -> None:
        """Kill a process that has said nothing for :data:`PATIENCE` seconds."""
        if self._channel is not None and time.monotonic() - self._heard > PATIENCE:
            self.kill()

    async def end(self) -> None:
        """Ask the process to end."""
        if self._channel is not None:
            self._channel.send(End())
            await self._channel.flush()

    @property
    def pid(self) -> int | None:
        """Id of the process, while there is one."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    # ------------------------------------------------------------------------------------- what it is told
    def send(self, message: ToProcess) -> None:
        """Send a message, if there is a process: the next is told all when it begins."""
        if self._channel is not None:
            self._channel.send(message)

    async def ask(self, number: int, message: ToProcess) -> bool:
        """Send a request and wait for its :class:`Done`; True where there is no process."""
        if self._channel is None:
            return True
        waiting = self._waiting[number] = _future()
        self._channel.send(message)
        return await waiting

    async def acknowledge(self, number: int) -> None:
        """Wait until the process serves by state ``number``, or is dead."""
        if self._channel is None or self._acknowledged >= number:
            return
        waiting = self._acks.get(number)
        if waiting is None:
            waiting = self._acks[number] = _future()
        await asyncio.shield(waiting)


def _future() -> asyncio.Future[bool]:
    return asyncio.get_running_loop().create_future()


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
