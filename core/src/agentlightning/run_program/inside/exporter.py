"""The line from a process of a program to ``agl run``: what is recorded goes out as it ends.

Frames are written at once to a loopback socket, so nothing waits for the process's end: what was written
arrives also when the process is killed. Invariants: sending is safe from any thread, from ``__del__`` and
after a fork, where the new process has a line of its own; it never raises; what could not be sent is counted
and told with the next frame that can.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from agentlightning.capture.fork import after_fork_in_child
from agentlightning.run_program.inside.frames import (
    HEAD,
    BeginEntry,
    Counted,
    EndEntry,
    FromProgram,
    Hello,
    SpanEnded,
    ToProgram,
    packed,
    to_program,
)
from agentlightning.run_program.inside.import_hook import warn
from agentlightning.types import Span

WAIT = 10.0
"""Seconds that a write may wait for ``agl run``."""
ANSWER = 60.0
"""Seconds that ``agl run`` may take to open or close an entry's attempt."""
UNDELIVERED = "undelivered"


class SpanExporter:
    """A line to the door at ``address`` (``host:port``) for the attempt of ``key``."""

    def __init__(self, address: str, key: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = host, int(port)
        self._key = key
        self._lock = threading.RLock()
        self._waiting: deque[bytes] = deque()
        self._busy = False
        self._lost = 0
        self._connection: socket.socket | None = None
        self._inode: tuple[int, int] | None = None
        after_fork_in_child(self._forked)

    def greet(self) -> None:
        """Say that this process is there."""
        self._send(b"")

    def span(self, span: Span) -> None:
        """Send a finished span."""
        self.send(SpanEnded(span))

    def count(self, reason: str, times: int = 1) -> None:
        """Send a count."""
        self.send(Counted(reason, times))

    def send(self, frame: FromProgram) -> None:
        """Send a frame."""
        try:
            data = packed(frame)
        except Exception:  # no form on the wire (half a character, a number without end)
            data = packed(Counted("unencodable"))
        self._send(data)

    def ask(self, frame: BeginEntry | EndEntry) -> ToProgram:
        """Send a frame after all that was sent before, and wait for its answer. ``OSError``: none came;
        ``ValueError``: the frame or the answer is none.
        """
        asked = packed(frame)
        with self._lock, self._occupied():
            self._write_all()
            try:
                connection = self._connected()
                connection.settimeout(ANSWER)
                connection.sendall(asked)
                (length,) = HEAD.unpack(_exactly(connection, HEAD.size))
                answer = to_program(_exactly(connection, length))
                connection.settimeout(WAIT)
            except BaseException:
                self._hang_up()
                raise
        self._send(b"")  # what came up meanwhile
        return answer

    def _send(self, data: bytes) -> None:
        self._waiting.append(data)
        with self._lock:
            if self._busy:  # called from within, by a destructor or a signal's handler: it is sent out there
                return
            with self._occupied():
                self._write_all()

    def _write_all(self) -> None:
        while self._waiting:
            data = self._waiting[0]
            self._write(data)
            if self._waiting and self._waiting[0] is data:  # a fork forgets what waits
                self._waiting.popleft()  # only here: who is interrupted (Ctrl-C) writes it again

    @contextmanager
    def _occupied(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _write(self, data: bytes) -> None:
        for _ in range(2):  # a connection that broke is made again, once
            try:
                connection = self._connected()
                if self._lost:
                    connection.sendall(packed(Counted(UNDELIVERED, self._lost)))
                    self._lost = 0
                connection.sendall(data)
                return
            except OSError as error:
                self._hang_up()
                why = error
            except BaseException:  # half a frame may be out: what comes next needs a connection of its own
                self._hang_up()
                raise
        if not self._lost:
            warn(f"agl run cannot be reached ({why}): what is recorded in the program is lost until it can")
        self._lost += 1

    def _connected(self) -> socket.socket:
        """The connection, made if there is none, or if the program has closed it (as daemons close all)."""
        if self._connection is not None and _inode(self._connection) != self._inode:
            self._hang_up()
        if self._connection is None:
            made = socket.create_connection(self._place, WAIT)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.sendall(packed(Hello(self._key, os.getpid(), platform.python_version())))
            self._connection, self._inode = made, _inode(made)
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if _inode(connection) == self._inode:
            connection.close()
        else:  # the program has closed it, and its number may be another file's by now
            connection.detach()

    def _forked(self) -> None:
        """In a forked process: let go of what is the parent's."""
        self._hang_up()
        self._lock, self._busy, self._lost = threading.RLock(), False, 0
        self._waiting.clear()


def _inode(connection: socket.socket) -> tuple[int, int] | None:
    """What the kernel has under the connection's number; ``None``: nothing."""
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _exactly(connection: socket.socket, n: int) -> bytes:
    parts = bytearray()
    while len(parts) < n:
        part = connection.recv(n - len(parts))
        if not part:
            raise ConnectionResetError("agl run closed the connection")
        parts += part
    return bytes(parts)
