"""Kept-alive connections to the engines.

The gateway asks engines over its own connections: a general client's request costs more than parsing and
recording the answer does. Invariant: a connection is used again only after an answer that came to its end and
was read to its end; any other is closed, which is how an engine learns that nobody waits.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import cast

from agentlightning.gateway.http1 import HEAD_LIMIT, BadHttp, Framing, Head

BUFFER = 2**20
"""Bytes that wait to be read beyond which the engine is held back."""
IDLE = 4.0
"""Seconds a connection is kept: below the 5 s and up after which engines hang up, so that no request meets a
closing line."""
Origin = tuple[str, str, int]
"""Scheme, host, port."""


class Connection(asyncio.Protocol):
    """One connection to an engine, for one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._raw = b""
        self._head: Head | None = None
        self._framing: Framing | None = None
        self._parts: list[bytes] = []
        self._waiting = 0
        self._error: Exception | None = None
        self._paused = False
        self._busy = False
        self._idle_since = 0.0

    # ----------------------------------------------------------------------------------------- one exchange
    async def ask(self, request: bytes, timeout: float | None) -> Head:
        """Send a request; the head of its answer. ``timeout``: seconds until the body's end."""
        assert self._transport is not None
        self._busy = True
        if timeout is not None:
            self._timer = self._loop.call_later(timeout, self._fail, TimeoutError())
        self._transport.write(request)
        while self._head is None:
            await self._news()
        return self._head

    async def read(self) -> bytes:
        """The body's bytes that have come since; ``b""`` at its end."""
        assert self._framing is not None
        while not self._parts and not self._framing.done:
            await self._news()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._waiting = 0
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return data

    def finish(self) -> bool:
        """The exchange is over: whether the connection can serve another; if not, it is closed."""
        self._busy = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        head, framing = self._head, self._framing
        if head and framing and head.keeps and framing.done and not self._parts and not self.closed:
            self._head = self._framing = None
            self._idle_since = self._loop.time()
            return True
        self.abort()
        return False

    @property
    def closed(self) -> bool:
        """It serves no more."""
        return self._transport is None or self._error is not None or self._transport.is_closing()

    @property
    def idle_for(self) -> float:
        """Seconds since its last answer's end."""
        return self._loop.time() - self._idle_since

    def abort(self) -> None:
        """Close at once; the engine sees that nobody waits for its answer."""
        if self._transport is not None:
            self._transport.abort()

    async def _news(self) -> None:
        """Wait until something has come."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # ------------------------------------------------------------------------------------- from the network
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other loops have classes of their own

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # nothing was asked
            self.abort()
            return
        try:
            self._take(data)
        except BadHttp as error:
            self._fail(error)
        else:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._framing is not None and self._error is None and exc is None:
            self._framing.close()
        if self._framing is None or not self._framing.done:
            self._fail(ConnectionResetError("the connection closed before the answer was complete"))
        self._wake()

    def _take(self, data: bytes) -> None:
        while self._framing is None:
            if self._raw:
                data, self._raw = self._raw + data, b""
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > HEAD_LIMIT:
                    raise BadHttp(f"the answer's head is longer than {HEAD_LIMIT} bytes")
                self._raw = data
                return
            head = Head(data[:end])
            data = data[end + 4 :]
            if head.status >= 200:  # below: interim, such as 100 Continue
                self._framing = head.framing()
                self._head = head
        if data and (body := self._framing.feed(data)):
            self._parts.append(body)
            self._waiting += len(body)
            if self._waiting > BUFFER and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pool:
    """Connections by origin. ``connect``: seconds to open one."""

    def __init__(self, connect: float) -> None:
        self._connect = connect
        self._idle: dict[Origin, deque[Connection]] = {}
        self._all: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None

    async def take(self, origin: Origin) -> Connection:
        """An idle connection, the latest used first, or a new one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not connection.closed and connection.idle_for < IDLE:
                return connection
            self._drop(connection)
        return await self._open(origin)

    def give_back(self, connection: Connection, origin: Origin) -> None:
        """The exchange is over, well or not."""
        if not connection.finish():
            self._all.discard(connection)
            return
        self._idle.setdefault(origin, deque()).append(connection)
        for idle in self._idle.values():
            while idle and (idle[0].closed or idle[0].idle_for >= IDLE):
                self._drop(idle.popleft())

    def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            connection.abort()
        self._all.clear()
        self._idle.clear()

    def _drop(self, connection: Connection) -> None:
        connection.abort()
        self._all.discard(connection)

    async def _open(self, origin: Origin) -> Connection:
        scheme, host, port = origin
        if scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        async with asyncio.timeout(self._connect):
            _, connection = await asyncio.get_running_loop().create_connection(
                Connection,
                host,
                port,
                ssl=self._tls if scheme == "https" else None,
            )
        self._all.add(connection)
        return connection
