"""The gateway as a client: one connection pool to all engines.

Only a short list of headers goes on; the agent's key and the suite's own headers never do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType

import msgspec

from agentlightning.gateway.connection import Connection, Origin, Pool
from agentlightning.gateway.errors import EngineUnreachable
from agentlightning.gateway.http1 import BadHttp, Head
from agentlightning.gateway.route import Upstream

PASSED_ON = ("traceparent", "tracestate", "x-request-id", "openai-organization", "openai-project")
"""Request headers that reach the engine."""
PASSED_BACK = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id")
"""Headers of the engine's answer that reach the agent, besides its content type."""


class Limits(msgspec.Struct, kw_only=True, frozen=True):
    """Timeouts towards the engines, in seconds, and the size of an answer, in bytes."""

    connect: float = 10.0
    total: float | None = 1_800.0
    answer_bytes: int = 64 * 2**20


_FAILURES = (BadHttp, OSError)


class Exchanging:
    """A request to an engine, as an ``async with`` block around its answer, head read."""

    __slots__ = ("_connection", "_limits", "_origin", "_policy", "_pool", "_request", "head")

    head: Head

    def __init__(self, pool: Pool, limits: Limits, route: Upstream, origin: Origin, request: bytes) -> None:
        self._pool = pool
        self._limits = limits
        self._policy = route.policy
        self._origin = origin
        self._request = request
        self._connection: Connection | None = None

    async def __aenter__(self) -> Exchanging:
        try:
            self._connection = await self._pool.take(self._origin)
            self.head = await self._connection.ask(self._request, self._limits.total)
        except BaseException as error:
            self._end()
            if isinstance(error, _FAILURES):
                raise self._failure(error) from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._connection is not None:
            self._pool.give_back(self._connection, self._origin)
            self._connection = None

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        assert self._connection is not None
        try:
            while data := await self._connection.read():
                yield data
        except _FAILURES as error:
            raise self._failure(error) from None

    async def read(self) -> bytes:
        """The whole body, within the limit."""
        limit, got = self._limits.answer_bytes, 0
        too_large = (self.head.length or 0) > limit
        parts: list[bytes] = []
        if not too_large:
            async for part in self.parts():
                parts.append(part)
                got += len(part)
                if too_large := got > limit:
                    break
        if too_large:
            raise EngineUnreachable(
                502, "answer-too-large", f"the engine's answer is longer than {limit} bytes"
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _failure(self, error: Exception) -> EngineUnreachable:
        if isinstance(error, TimeoutError):
            return EngineUnreachable(
                504, "engine-timeout", f"the engine of policy {self._policy!r} did not answer in time"
            )
        message = f"the engine of policy {self._policy!r} failed: {type(error).__name__}: {error}"
        return EngineUnreachable(502, "engine-unreachable", message)


class Forwarder:
    """Sends requests to engines. Nothing is retried here: the SDK retries, and each try is recorded."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool: Pool | None = None

    async def start(self) -> None:
        """Open the pool."""
        self._pool = Pool(self._limits.connect)

    async def stop(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def post(self, route: Upstream, api: str, body: bytes, headers: Mapping[str, str]) -> Exchanging:
        """Ask an engine; the block gets its answer, head read. Failures become :class:`EngineUnreachable`."""
        if self._pool is None:
            raise RuntimeError("the gateway is not started: await start()")
        endpoint = route.endpoints[api]
        lines = [endpoint.head, f"Content-Length: {len(body)}"]
        for name in PASSED_ON:
            if (value := headers.get(name)) is not None:
                lines.append(f"{name}: {value}")
        if route.api_key:
            lines.append(f"Authorization: Bearer {route.api_key}")
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
        return Exchanging(self._pool, self._limits, route, endpoint.origin, head + b"\r\n\r\n" + body)
