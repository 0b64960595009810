"""The door: where processes of programs tell what they recorded, each with the key of its attempt.

A loopback server; see :mod:`agentlightning.run_program.inside.frames`.

Invariants: a connection speaks for the attempt of
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
from agentlightning.keys import KeyRefused, Keys
from agentlightning.run_program.inside.frames import (
    GREETING,
    HEAD,
    LARGEST,
    Adapted,
    BeginEntry,
    Counted,
    EndEntry,
    EntryDenied,
    FromProgram,
    Hello,
    SpanEnded,
    ToProgram,
    from_program,
    packed,
)
from agentlightning.types import Span

_LOG = logging.getLogger(__name__)
HELLO_SECONDS = 10.0
"""Seconds in which a connection must have said whose it is."""
DRAIN_SECONDS = 2.0
"""Seconds in which connections must end once their program has; what they had sent is read before."""


class ConnectedProgram:
    """A program at the door. ``enter`` and ``leave`` open and close attempts of its entries; ``None``: they
    are not wanted.
    """

    def __init__(self, context: AttemptContext) -> None:
        self.contexts = {context.attempt_id: context}
        """Its own attempt, and those of entries under way."""
        self.enter: Callable[[BeginEntry], Awaitable[ToProgram]] | None = None
        self.leave: Callable[[EndEntry], Awaitable[ToProgram]] | None = None
        self.processes: set[int] = set()
        """Ids of the processes in which capture began."""
        self.adapters: dict[str, str | None] = {}
        """Adapter → why it is not on."""
        self.counts: Counter[str] = Counter()
        self.connections: set[asyncio.Task[None]] = set()

    def span(self, span: Span) -> None:
        """Take a span for the attempt it names."""
        context = self.contexts.get(span.attempt_id)
        if context is None or span.rollout_id != context.rollout_id:
            self.counts["foreign-attempt" if context else "late-span"] += 1
        else:
            deliver(context, span)  # which counts what it does not take


class Collector:
    """Serves the guests that are expected. ``keys`` checks whose they are."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._programs: dict[str, ConnectedProgram] = {}
        self._server: asyncio.Server | None = None
        self._address = ("127.0.0.1", 0)
        self._unauthenticated: dict[asyncio.Task[None], asyncio.Event] = {}
        """Connections that have not said whose they are, and when they have."""
        self._probes: dict[Any, asyncio.Event] = {}
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
            for task in tuple(self._unauthenticated):
                task.cancel()
            await self._server.wait_closed()

    def admit(self, context: AttemptContext) -> ConnectedProgram:
        """Let the processes of an attempt in."""
        program = self._programs[context.attempt_id] = ConnectedProgram(context)
        return program

    async def close_attempt(self, context: AttemptContext) -> None:
        """The program has ended: take what it has sent, then nothing more. Processes it left behind are cut
        off.
        """
        program = self._programs[context.attempt_id]
        await self._accept_pending()
        if program.connections:
            _, late = await asyncio.wait(program.connections, timeout=DRAIN_SECONDS)
            if late:
                program.counts["process-left-behind"] += len(late)
                for task in late:
                    task.cancel()
                await asyncio.wait(late)
        self._programs.pop(context.attempt_id, None)

    async def _accept_pending(self) -> None:
        """Whoever connected before this is heard: also a process that told all and ended at once, while we
        were at something else. Connections are accepted in their order, so one of our own shows when.
        """
        loop = asyncio.get_running_loop()
        with socket.socket() as ours:
            ours.setblocking(False)
            ours.bind(("127.0.0.1", 0))
            place = ours.getsockname()
            arrived = self._probes[place] = asyncio.Event()
            try:
                async with asyncio.timeout(DRAIN_SECONDS):
                    await loop.sock_connect(ours, self._address)
                    await arrived.wait()
                    for said_hello in tuple(self._unauthenticated.values()):
                        await said_hello.wait()
            except (OSError, TimeoutError) as error:  # whoever comes now is refused, and counted
                _LOG.warning("not all connections of a program could be waited for: %r", error)
            finally:
                self._probes.pop(place, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if (probe := self._probes.pop(writer.get_extra_info("peername"), None)) is not None:
                probe.set()
                return
            program = await self._authenticate(reader, task)
            if program is None:
                return
            program.connections.add(task)
            task.add_done_callback(program.connections.discard)
            await self._listen(program, reader, writer)
        except TimeoutError:
            self.refused["no-greeting"] += 1
        except (ConnectionError, asyncio.CancelledError):
            pass  # it is gone, or is cut off, which is counted there
        finally:
            writer.close()

    async def _authenticate(
        self, reader: asyncio.StreamReader, task: asyncio.Task[None]
    ) -> ConnectedProgram | None:
        said_hello = self._unauthenticated[task] = asyncio.Event()
        try:
            return await asyncio.wait_for(self._read_hello(reader), HELLO_SECONDS)
        finally:
            del self._unauthenticated[task]
            said_hello.set()

    async def _read_hello(self, reader: asyncio.StreamReader) -> ConnectedProgram | None:
        frame = self._decoded(await self._read_frame(reader, GREETING))
        if not isinstance(frame, Hello):
            self.refused["no-greeting"] += 1
            return None
        try:
            program = self._programs.get(self._keys.check(frame.key).attempt_id)
        except KeyRefused as refused:
            self.refused[refused.reason] += 1
            return None
        if program is None:
            self.refused["attempt-ended"] += 1
            return None
        program.processes.add(frame.pid)
        return program

    async def _listen(
        self, program: ConnectedProgram, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while (body := await self._read_frame(reader, LARGEST)) is not None:
            if (frame := self._decoded(body)) is None:
                continue  # the next one may be whole
            if isinstance(frame, SpanEnded):
                program.span(frame.span)
            elif isinstance(frame, Counted):
                program.counts[frame.reason] += frame.times
            elif isinstance(frame, Adapted):
                if program.adapters.get(frame.name, "") is not None:  # on in one process is enough
                    program.adapters[frame.name] = frame.error
            elif isinstance(frame, BeginEntry | EndEntry):
                writer.write(packed(await _answer(program, frame)))
                await writer.drain()

    async def _read_frame(self, reader: asyncio.StreamReader, largest: int) -> bytes | None:
        """The next frame's bytes; ``None``: there is none, or its length cannot be, which is counted."""
        try:
            (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
            if length <= largest:
                return await reader.readexactly(length)
            self._count_bad_frame(f"{length} bytes: its connection is closed")
        except asyncio.IncompleteReadError as end:
            if end.partial:
                self.refused["broken-off"] += 1
        return None

    def _decoded(self, body: bytes | None) -> FromProgram | None:
        """What the bytes say; ``None``: nothing, which is counted where there are any."""
        try:
            return None if body is None else from_program(body)
        except ValueError as error:
            self._count_bad_frame(str(error))
            return None

    def _count_bad_frame(self, why: str) -> None:
        self.refused["no-frame"] += 1
        _LOG.warning("a program sent what is no frame of ours: %s", why)


async def _answer(program: ConnectedProgram, frame: BeginEntry | EndEntry) -> ToProgram:
    do = program.enter if isinstance(frame, BeginEntry) else program.leave
    if do is None:
        return EntryDenied("entries have no rollouts of their own here: start the program with --per-entry")
    try:
        return await do(frame)  # type: ignore[arg-type]
    except Exception as error:  # told to the program, where it is raised
        _LOG.exception("an entry's attempt could not be opened or closed")
        return EntryDenied(f"{type(error).__name__}: {error}")
