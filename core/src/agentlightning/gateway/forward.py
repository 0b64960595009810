"""The gateway as a client: one connection pool to all engines.

Only a short list of headers goes on; the agent's key and the suite's own headers never do. Where a policy has
several addresses, a request that finds nobody at one is asked again, whole, at the next: nothing of an answer
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

from agentlightning.gateway.addresses import Address
from agentlightning.gateway.errors import EngineUnreachable
from agentlightning.gateway.route import Upstream

log = logging.getLogger(__name__)

PASSED_ON = ("traceparent", "tracestate", "x-request-id", "openai-organization", "openai-project")
"""Request headers that reach the engine."""
PASSED_BACK = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id")
"""Headers of the engine's answer that reach the agent, besides its content type."""


class Limits(msgspec.Struct, kw_only=True, frozen=True):
    """Timeouts towards the engines, in seconds, and the size of an answer, in bytes."""

    connect: float = 10.0
    total: float | None = 1_800.0
    answer_bytes: int = 64 * 2**20


Request = AbstractAsyncContextManager[aiohttp.ClientResponse]
UNCONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Nobody is there: the request has not left."""
CUT = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
"""The line broke before an answer began."""


class Exchanging:
    """A request to a policy, as an ``async with`` block around its answer. ``ask`` begins it at an address;
    ``key``: see :meth:`Addresses.order`.

    A request that is cut off is asked again once: should it be what ends the engines, it ends no third.
    """

    __slots__ = ("_address", "_ask", "_key", "_moved", "_request", "_route")

    def __init__(
        self, route: Upstream, key: str | None, ask: Callable[[Address], Request], moved: Counter[str]
    ) -> None:
        self._route = route
        self._key = key
        self._ask = ask
        self._moved = moved

    async def __aenter__(self) -> aiohttp.ClientResponse:
        failed: BaseException | None = None
        last: Address | None = None
        cuts = 0
        for address in self._route.addresses.order(self._key):
            if last is not None:
                last.moved += 1
                self._moved[self._route.policy] += 1
            self._address, self._request = address, self._ask(address)
            address.in_flight += 1
            try:
                response = await self._request.__aenter__()
            except BaseException as error:
                address.in_flight -= 1
                if not isinstance(error, (aiohttp.ClientError, OSError)):
                    raise
                failed, last = error, address
                cuts += self._lost(address, error)
                if not isinstance(error, (*UNCONNECTED, *CUT)) or cuts > 1:
                    break
                continue
            address.answered += 1
            if address.rests_until and self._route.addresses.there(address):
                log.info("policy %r: the engine at %s answers again", self._route.policy, address.url)
            return response
        assert failed is not None
        raise self._failure(failed) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._address.in_flight -= 1
        await self._request.__aexit__(kind, error, trace)
        if isinstance(error, (aiohttp.ClientError, OSError)):
            raise self._failure(error) from None

    def _lost(self, address: Address, error: BaseException) -> bool:
        """Take note that ``address`` gave no answer; whether it had the request."""
        if isinstance(error, UNCONNECTED):
            address.lost += 1
            if self._route.addresses.gone(address) and len(self._route.addresses) > 1:
                log.warning(
                    "policy %r: nobody answers at %s (%s); its calls go to the other addresses",
                    self._route.policy,
                    address.url,
                    type(error).__name__,
                )
            return False
        cut = isinstance(error, CUT)
        address.lost += cut
        return cut

    def _failure(self, error: BaseException) -> EngineUnreachable:
        many = len(self._route.addresses)
        engine = f"the engine of policy {self._route.policy!r}"
        if isinstance(error, TimeoutError):
            return EngineUnreachable(504, "engine-timeout", f"{engine} did not answer in time")
        where = f" at {self._address.url} (one of {many})" if many > 1 else ""
        said = self._route.redact_text(str(error))  # it may quote a header of the answer
        message = f"{engine}{where} failed: {type(error).__name__}: {said[:500]}"
        return EngineUnreachable(502, "engine-unreachable", message)


class Forwarder:
    """Sends requests to engines. What an engine has answered is final, errors too: the SDK retries, and each
    try is recorded. ``moved``: counts, by policy, requests that were asked again at another address.
    """

    def __init__(self, limits: Limits, moved: Counter[str]) -> None:
        self._limits = limits
        self._moved = moved
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
    ) -> Exchanging:
        """Ask an engine of ``route``; the block gets its answer, head read. Requests of one ``key`` go to one
        engine, those without any go to each in turn. Failures become :class:`EngineUnreachable`.
        """
        session = self._session
        if session is None:
            raise RuntimeError("the gateway is not started: await start()")
        send = {"Content-Type": "application/json"}
        for name in PASSED_ON:
            if (value := headers.get(name)) is not None:
                send[name] = value
        if route.api_key:
            send["Authorization"] = f"Bearer {route.api_key}"

        def ask(address: Address) -> Request:
            return session.post(address.urls[api], data=body, headers=send, allow_redirects=False)

        return Exchanging(route, key, ask, self._moved)

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
