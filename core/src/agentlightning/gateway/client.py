"""The gateway as a client: one connection pool to all engines.

Only a short list of headers is passed on; the agent's key and this suite's own headers never are. Where a
policy has several endpoints, a request that one cannot take is sent whole to the next: nothing of an answer
has begun by then, so the agent sees one call, and one call is recorded. An engine's answer is final, an error
too: the SDK retries, and each try is recorded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from agentlightning.gateway.errors import EngineReply, EngineUnreachable
from agentlightning.gateway.route import Endpoint, Upstream
from agentlightning.redaction import redacted

log = logging.getLogger(__name__)

REQUEST_HEADERS = ("traceparent", "tracestate", "x-request-id", "openai-organization", "openai-project")
"""Headers of a request that reach the engine."""
RESPONSE_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id")
"""Headers of the engine's answer that reach the agent, besides its content type."""
NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""The request has not left."""
CONNECTION_LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
"""The request may have left; no answer began."""


class Limits(msgspec.Struct, kw_only=True, frozen=True):
    """Timeouts towards the engines, in seconds, and the size of an answer, in bytes."""

    connect: float = 10.0
    total: float | None = 1_800.0
    answer_bytes: int = 64 * 2**20


class EngineClient:
    """Sends requests to engines. ``failovers`` counts, by policy, requests sent again to another endpoint."""

    def __init__(self, limits: Limits, failovers: Counter[str]) -> None:
        self.limits = limits
        self._failovers = failovers
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the pool."""
        timeout = aiohttp.ClientTimeout(
            total=self.limits.total, connect=None, sock_connect=self.limits.connect, sock_read=None
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

    async def ask(
        self, route: Upstream, api: str, body: bytes, headers: Mapping[str, str], key: str | None
    ) -> EngineReply:
        """Send a request as :meth:`sent` does, and return the whole answer."""
        async with self.sent(route, api, body, headers, key) as response:
            return await self.read(route, response)

    @asynccontextmanager
    async def sent(
        self, route: Upstream, api: str, body: bytes, headers: Mapping[str, str], key: str | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to an engine of ``route``. The block reads the body of the response.

        Requests of one ``key`` go to one endpoint, requests without a key go to each in turn. Raise
        :class:`EngineUnreachable` when no endpoint answers, or when the connection fails in the block.
        """
        endpoint, response = await self._connect(route, api, body, headers, key)
        try:
            async with response:
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(route, endpoint, error) from None
        finally:
            endpoint.in_flight -= 1

    async def _connect(
        self, route: Upstream, api: str, body: bytes, headers: Mapping[str, str], key: str | None
    ) -> tuple[Endpoint, aiohttp.ClientResponse]:
        """Try the endpoints in their order. A request whose connection was lost is sent to one other endpoint
        only, in case it is the request that crashes engines.
        """
        if self._session is None:
            raise RuntimeError("the gateway is not started: await start()")
        send = {name: value for name in REQUEST_HEADERS if (value := headers.get(name)) is not None}
        send["Content-Type"] = "application/json"
        if route.api_key:
            send["Authorization"] = f"Bearer {route.api_key}"
        failed: tuple[Endpoint, Exception] | None = None
        lost = 0
        for endpoint in route.endpoints.order(key):
            if failed is not None:
                failed[0].failovers += 1
                self._failovers[route.policy] += 1
            endpoint.in_flight += 1
            try:
                response = await self._session.post(
                    endpoint.urls[api], data=body, headers=send, allow_redirects=False, proxy=endpoint.proxy
                )
            except BaseException as error:
                endpoint.in_flight -= 1
                if not isinstance(error, (aiohttp.ClientError, OSError)):
                    raise
                failed = endpoint, error
                if not isinstance(error, NOT_CONNECTED + CONNECTION_LOST):
                    break
                endpoint.lost += 1
                if isinstance(error, NOT_CONNECTED):
                    _eject(route, endpoint, error)
                elif (lost := lost + 1) > 1:
                    break
            else:
                endpoint.answered += 1
                if endpoint.ejected_until:
                    endpoint.ejected_until = 0.0
                    where = redacted(endpoint.url)
                    log.info("policy %r: the engine at %s answers again", route.policy, where)
                return endpoint, response
        assert failed is not None
        raise _unreachable(route, *failed) from None

    async def read(self, route: Upstream, response: aiohttp.ClientResponse) -> EngineReply:
        """Read the whole answer, and remove the route's key from it should the engine quote it.

        The limit counts bytes after decompression: a short body may unfold to a long one.
        """
        parts: list[bytes] = []
        left = self.limits.answer_bytes
        while part := await response.content.readany():
            parts.append(part)
            left -= len(part)
            if left < 0:
                message = f"the engine's answer is longer than {self.limits.answer_bytes} bytes"
                raise EngineUnreachable(502, "answer-too-large", message)
        headers = {"Content-Type": response.headers.get("Content-Type", "application/json")}
        for name in RESPONSE_HEADERS:
            if (value := response.headers.get(name)) is not None:
                headers[name] = value
        if route.api_key:
            headers = {name: route.redact_text(value) for name, value in headers.items()}
        return EngineReply(response.status, headers, route.scrub(b"".join(parts)))


def _eject(route: Upstream, endpoint: Endpoint, error: Exception) -> None:
    """Make calls avoid an endpoint that refused a connection."""
    if route.endpoints.eject(endpoint) and len(route.endpoints.all) > 1:
        log.warning(
            "policy %r: no connection to %s (%s); its calls go to the other endpoints",
            route.policy,
            redacted(endpoint.url),
            type(error).__name__,
        )


def _unreachable(route: Upstream, endpoint: Endpoint, error: Exception) -> EngineUnreachable:
    engine = f"the engine of policy {route.policy!r}"
    if isinstance(error, TimeoutError):
        return EngineUnreachable(504, "engine-timeout", f"{engine} did not answer in time")
    if (many := len(route.endpoints.all)) > 1:
        engine += f" at {redacted(endpoint.url)} (one of {many})"
    reason = redacted(route.redact_text(str(error)))[:500]  # it may quote a header of the answer
    return EngineUnreachable(502, "engine-unreachable", f"{engine} failed: {type(error).__name__}: {reason}")
