"""The gateway as a client: one connection pool to all engines.

Only a short list of headers goes on; the agent's key and the suite's own headers never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import aiohttp
import msgspec

from agentlightning.gateway.errors import EngineUnreachable
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


class Exchanging:
    """A request to an engine, as an ``async with`` block around its answer."""

    __slots__ = ("_policy", "_request")

    def __init__(self, request: AbstractAsyncContextManager[aiohttp.ClientResponse], policy: str) -> None:
        self._request = request
        self._policy = policy

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            return await self._request.__aenter__()
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(error) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._request.__aexit__(kind, error, trace)
        if isinstance(error, (aiohttp.ClientError, OSError)):
            raise self._failure(error) from None

    def _failure(self, error: BaseException) -> EngineUnreachable:
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
        self._session: aiohttp.ClientSession | None = None

    @property
    def answer_bytes(self) -> int:
        """Bytes of an answer, whole or streamed, at most."""
        return self._limits.answer_bytes

    async def start(self) -> None:
        """Open the pool."""
        timeout = aiohttp.ClientTimeout(
            total=self._limits.total, connect=None, sock_connect=self._limits.connect, sock_read=None
        )
        self._session = aiohttp.ClientSession(
            # below the idle time (5 s and up) after which engines hang up: no request meets a closing line
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            auto_decompress=True,
        )

    async def stop(self) -> None:
        """Close the pool."""
        if self._session:
            await self._session.close()
            self._session = None

    def post(self, route: Upstream, api: str, body: bytes, headers: Mapping[str, str]) -> Exchanging:
        """Ask an engine; the block gets its answer, head read. Failures become :class:`EngineUnreachable`."""
        if self._session is None:
            raise RuntimeError("the gateway is not started: await start()")
        send = {"Content-Type": "application/json"}
        for name in PASSED_ON:
            if (value := headers.get(name)) is not None:
                send[name] = value
        if route.api_key:
            send["Authorization"] = f"Bearer {route.api_key}"
        request = self._session.post(route.endpoints[api], data=body, headers=send, allow_redirects=False)
        return Exchanging(request, route.policy)

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body, within the limit."""
        limit = self._limits.answer_bytes
        too_large = EngineUnreachable(
            502, "answer-too-large", f"the engine's answer is longer than {limit} bytes"
        )
        if response.content_length is not None:
            if response.content_length > limit:
                raise too_large
            if "Content-Encoding" not in response.headers:  # a short body may unfold to a long one
                return await response.read()
        raw = bytearray()
        async for part in response.content.iter_any():
            raw += part
            if len(raw) > limit:
                raise too_large
        return bytes(raw)
