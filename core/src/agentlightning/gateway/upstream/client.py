"""The gateway as a client: one connection pool to all engines.

Only a short list of headers goes on; the agent's key and the suite's own headers never do. Where a policy has
several endpoints, a request that finds nobody at one is asked again, whole, at the next: nothing of an answer
has begun by then, so the agent sees one call, and one is recorded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import aiohttp
import msgspec

from agentlightning.gateway.errors import EngineUnreachable
from agentlightning.gateway.upstream.endpoints import Endpoint
from agentlightning.gateway.upstream.route import Upstream

log = logging.getLogger(__name__)

REQUEST_HEADERS = ("traceparent", "tracestate", "x-request-id", "openai-organization", "openai-project")
"""Request headers that reach the engine."""
RESPONSE_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id")
"""Headers of the engine's answer that reach the agent, besides its content type."""


class Limits(msgspec.Struct, kw_only=True, frozen=True):
    """Timeouts towards the engines, in seconds, and the size of an answer, in bytes."""

    connect: float = 10.0
    total: float | None = 1_800.0
    answer_bytes: int = 64 * 2**20


Request = AbstractAsyncContextManager[aiohttp.ClientResponse]
NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Nobody is there: the request has not left."""
CONNECTION_LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
"""The line broke before an answer began."""


class UpstreamRequest:
    """A request to a policy, as an ``async with`` block around its answer. ``ask`` begins it at an endpoint;
    ``key``: see :meth:`Endpoints.order`.

    A request that is cut off is asked again once: should it be what ends the engines, it ends no third.
    """

    __slots__ = ("_ask", "_endpoint", "_failovers", "_key", "_request", "_route")

    def __init__(
        self, route: Upstream, key: str | None, ask: Callable[[Endpoint], Request], failovers: Counter[str]
    ) -> None:
        self._route = route
        self._key = key
        self._ask = ask
        self._failovers = failovers

    async def __aenter__(self) -> aiohttp.ClientResponse:
        failed: BaseException | None = None
        last: Endpoint | None = None
        cuts = 0
        for endpoint in self._route.endpoints.order(self._key):
            if last is not None:
                last.failovers += 1
                self._failovers[self._route.policy] += 1
            self._endpoint, self._request = endpoint, self._ask(endpoint)
            endpoint.in_flight += 1
            try:
                response = await self._request.__aenter__()
            except BaseException as error:
                endpoint.in_flight -= 1
                if not isinstance(error, (aiohttp.ClientError, OSError)):
                    raise
                failed, last = error, endpoint
                cuts += self._lost(endpoint, error)
                if not isinstance(error, (*NOT_CONNECTED, *CONNECTION_LOST)) or cuts > 1:
                    break
                continue
            endpoint.answered += 1
            if endpoint.ejected_until and self._route.endpoints.mark_up(endpoint):
                log.info("policy %r: the engine at %s answers again", self._route.policy, endpoint.url)
            return response
        assert failed is not None
        raise self._failure(failed) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.in_flight -= 1
        await self._request.__aexit__(kind, error, trace)
        if isinstance(error, (aiohttp.ClientError, OSError)):
            raise self._failure(error) from None

    def _lost(self, endpoint: Endpoint, error: BaseException) -> bool:
        """Take note that ``endpoint`` gave no answer; whether it had the request."""
        if isinstance(error, NOT_CONNECTED):
            endpoint.lost += 1
            if self._route.endpoints.mark_down(endpoint) and len(self._route.endpoints) > 1:
                log.warning(
                    "policy %r: nobody answers at %s (%s); its calls go to the other endpoints",
                    self._route.policy,
                    endpoint.url,
                    type(error).__name__,
                )
            return False
        cut = isinstance(error, CONNECTION_LOST)
        endpoint.lost += cut
        return cut

    def _failure(self, error: BaseException) -> EngineUnreachable:
        many = len(self._route.endpoints)
        engine = f"the engine of policy {self._route.policy!r}"
        if isinstance(error, TimeoutError):
            return EngineUnreachable(504, "engine-timeout", f"{engine} did not answer in time")
        where = f" at {self._endpoint.url} (one of {many})" if many > 1 else ""
        said = self._route.redact_text(str(error))  # it may quote a header of the answer
        message = f"{engine}{where} failed: {type(error).__name__}: {said[:500]}"
        return EngineUnreachable(502, "engine-unreachable", message)


class EngineReply(msgspec.Struct, frozen=True):
    """An engine's whole answer: status, headers to pass back, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


class EngineClient:
    """Sends requests to engines. What an engine has answered is final, errors too: the SDK retries, and each
    try is recorded. ``failovers``: counts, by policy, requests that were asked again at another endpoint.
    """

    def __init__(self, limits: Limits, failovers: Counter[str]) -> None:
        self._limits = limits
        self._failovers = failovers
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

    def post(
        self, route: Upstream, api: str, body: bytes, headers: Mapping[str, str], key: str | None
    ) -> UpstreamRequest:
        """Ask an engine of ``route``; the block gets its answer, head read. Requests of one ``key`` go to one
        engine, those without any go to each in turn. Failures become :class:`EngineUnreachable`.
        """
        session = self._session
        if session is None:
            raise RuntimeError("the gateway is not started: await start()")
        send = {"Content-Type": "application/json"}
        for name in REQUEST_HEADERS:
            if (value := headers.get(name)) is not None:
                send[name] = value
        if route.api_key:
            send["Authorization"] = f"Bearer {route.api_key}"

        def ask(endpoint: Endpoint) -> Request:
            return session.post(endpoint.urls[api], data=body, headers=send, allow_redirects=False)

        return UpstreamRequest(route, key, ask, self._failovers)

    async def read(self, route: Upstream, response: aiohttp.ClientResponse) -> EngineReply:
        """The whole answer, without the route's key should the engine quote it."""
        body = route.scrub(await self.read_body(response))
        headers = {"Content-Type": response.headers.get("Content-Type", "application/json")}
        for name in RESPONSE_HEADERS:
            if (value := response.headers.get(name)) is not None:
                headers[name] = value
        return EngineReply(response.status, route.redacted(headers), body)

    async def read_body(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body, within the limit."""
        limit = self._limits.answer_bytes
        if response.content_length is not None:
            if response.content_length > limit:
                raise _too_large(limit)
            if "Content-Encoding" not in response.headers:  # a short body may unfold to a long one
                return await response.read()
        raw = bytearray()
        async for part in response.content.iter_any():
            raw += part
            if len(raw) > limit:
                raise _too_large(limit)
        return bytes(raw)


def _too_large(limit: int) -> EngineUnreachable:
    return EngineUnreachable(502, "answer-too-large", f"the engine's answer is longer than {limit} bytes")
