"""The door: where processes of programs tell what they recorded, each with the key of its attempt.

A loopback server; see :mod:`agentlightning.child.frames`. Invariants: a connection speaks for the attempt of
its key, and for attempts of entries that were opened through it, and for no other; nothing is taken for an
attempt that has ended; what is refused is counted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import deliver
from agentlightning.child.frames import (
    GREETING,
    HEAD,
    LARGEST,
    Adapted,
    Counted,
    Denied,
    Enter,
    Finished,
    FromProgram,
    Hello,
    Leave,
    ToProgram,
    from_program,
    packed,
)
from agentlightning.keys import KeyRefused, Keys
from agentlightning.types import Span

_LOG = logging.getLogger(__name__)
TO_GREET = 10.0
"""Seconds in which a connection must have said whose it is."""
LAST_WORDS = 2.0
"""Seconds in which connections must end once their program has; what they had sent is read before."""


class Guest:
    """A program at the door. ``enter`` and ``leave`` open and close attempts of its entries; ``None``: they
    are not wanted.
    """

    def __init__(self, context: AttemptContext) -> None:
        self.contexts = {context.attempt_id: context}
        """Its own attempt, and those of entries under way."""
        self.enter: Callable[[Enter], Awaitable[ToProgram]] | None = None
        self.leave: Callable[[Leave], Awaitable[ToProgram]] | None = None
        self.processes: set[int] = set()
        """Ids of the processes in which capture began."""
        self.adapters: dict[str, str | None] = {}
        """Adapter → why it is not on."""
        self.counts: Counter[str] = Counter()
        self.talking: set[asyncio.Task[None]] = set()

    def span(self, span: Span) -> None:
        """Take a span for the attempt it names."""
        context = self.contexts.get(span.attempt_id)
        if context is None or span.rollout_id != context.rollout_id:
            self.counts["foreign-attempt" if context else "late-span"] += 1
        else:
            deliver(context, span)  # which counts what it does not take


class Door:
    """Serves the guests that are expected. ``keys`` checks whose they are."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._guests: dict[str, Guest] = {}
        self._server: asyncio.Server | None = None
        self._address = ("127.0.0.1", 0)
        self._strangers: dict[asyncio.Task[None], asyncio.Event] = {}
        """Connections that have not said whose they are, and when they have."""
        self._knocks: dict[Any, asyncio.Event] = {}
        """Addresses of our own connections."""
        self.refused: Counter[str] = Counter()
        """Connections and frames that were nobody's."""

    async def start(self) -> str:
        """Listen on loopback; the result is the address, ``host:port``."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._address = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()
            for task in tuple(self._strangers):
                task.cancel()
            await self._server.wait_closed()

    def expect(self, context: AttemptContext) -> Guest:
        """Let the processes of an attempt in."""
        guest = self._guests[context.attempt_id] = Guest(context)
        return guest

    async def dismiss(self, context: AttemptContext) -> None:
        """The program has ended: take what it has sent, then nothing more. Processes it left behind are cut
        off.
        """
        guest = self._guests[context.attempt_id]
        await self._let_in()
        if guest.talking:
            _, late = await asyncio.wait(guest.talking, timeout=LAST_WORDS)
            if late:
                guest.counts["process-left-behind"] += len(late)
                for task in late:
                    task.cancel()
                await asyncio.wait(late)
        self._guests.pop(context.attempt_id, None)

    async def _let_in(self) -> None:
        """Whoever connected before this is heard: also a process that told all and ended at once, while we
        were at something else. Connections are accepted in their order, so one of our own shows when.
        """
        loop = asyncio.get_running_loop()
        with socket.socket() as ours:
            ours.setblocking(False)
            ours.bind(("127.0.0.1", 0))
            place = ours.getsockname()
            arrived = self._knocks[place] = asyncio.Event()
            try:
                async with asyncio.timeout(LAST_WORDS):
                    await loop.sock_connect(ours, self._address)
                    await arrived.wait()
                    for greeted in tuple(self._strangers.values()):
                        await greeted.wait()
            except (OSError, TimeoutError) as error:  # whoever comes now is refused, and counted
                _LOG.warning("not all connections of a program could be waited for: %r", error)
            finally:
                self._knocks.pop(place, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if (knock := self._knocks.pop(writer.get_extra_info("peername"), None)) is not None:
                knock.set()
                return
            guest = await self._met(reader, task)
            if guest is None:
                return
            guest.talking.add(task)
            task.add_done_callback(guest.talking.discard)
            await self._listen(guest, reader, writer)
        except TimeoutError:
            self.refused["no-greeting"] += 1
        except (ConnectionError, asyncio.CancelledError):
            pass  # it is gone, or is cut off, which is counted there
        finally:
            writer.close()

    async def _met(self, reader: asyncio.StreamReader, task: asyncio.Task[None]) -> Guest | None:
        greeted = self._strangers[task] = asyncio.Event()
        try:
            return await asyncio.wait_for(self._greeted(reader), TO_GREET)
        finally:
            del self._strangers[task]
            greeted.set()

    async def _greeted(self, reader: asyncio.StreamReader) -> Guest | None:
        frame = self._frame(await self._body(reader, GREETING))
        if not isinstance(frame, Hello):
            self.refused["no-greeting"] += 1
            return None
        try:
            guest = self._guests.get(self._keys.check(frame.key).attempt_id)
        except KeyRefused as refused:
            self.refused[refused.reason] += 1
            return None
        if guest is None:
            self.refused["attempt-ended"] += 1
            return None
        guest.processes.add(frame.pid)
        return guest

    async def _listen(self, guest: Guest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (body := await self._body(reader, LARGEST)) is not None:
            if (frame := self._frame(body)) is None:
                continue  # the next one may be whole
            if isinstance(frame, Finished):
                guest.span(frame.span)
            elif isinstance(frame, Counted):
                guest.counts[frame.reason] += frame.times
            elif isinstance(frame, Adapted):
                if guest.adapters.get(frame.name, "") is not None:  # one process in which it is on is enough
                    guest.adapters[frame.name] = frame.error
            elif isinstance(frame, Enter | Leave):
                writer.write(packed(await _answer(guest, frame)))
                await writer.drain()

    async def _body(self, reader: asyncio.StreamReader, largest: int) -> bytes | None:
        """The next frame's bytes; ``None``: there is none, or its length cannot be, which is counted."""
        try:
            (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
            if length <= largest:
                return await reader.readexactly(length)
            self._no_frame(f"{length} bytes: its connection is closed")
        except asyncio.IncompleteReadError as end:
            if end.partial:
                self.refused["broken-off"] += 1
        return None

    def _frame(self, body: bytes | None) -> FromProgram | None:
        """What the bytes say; ``None``: nothing, which is counted where there are any."""
        try:
            return None if body is None else from_program(body)
        except ValueError as error:
            self._no_frame(str(error))
            return None

    def _no_frame(self, why: str) -> None:
        self.refused["no-frame"] += 1
        _LOG.warning("a program sent what is no frame of ours: %s", why)


async def _answer(guest: Guest, frame: Enter | Leave) -> ToProgram:
    do = guest.enter if isinstance(frame, Enter) else guest.leave
    if do is None:
        return Denied("entries have no rollouts of their own here: start the program with --per-entry")
    try:
        return await do(frame)  # type: ignore[arg-type]
    except Exception as error:  # told to the program, where it is raised
        _LOG.exception("an entry's attempt could not be opened or closed")
        return Denied(f"{type(error).__name__}: {error}")
