"""The store of another process: the same interface over HTTP, generated from the table of routes.

Every change bears a request id. A request is sent again under its id until it is answered, so a lost response
does not do a change twice. A client may start before its server, and outlive a restart of it:
it waits, warns once, and gives up after ``patience`` seconds.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import logging
import math
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import msgspec

from agentlightning.plugins.manager import store_operation
from agentlightning.store.base import REMEMBERED, Store, StoreError
from agentlightning.store.bounds import check_seconds
from agentlightning.store.calls import StoredRecord
from agentlightning.store.pages import record_pages
from agentlightning.store.places import patience_from_env
from agentlightning.types import Record
from agl_cluster.roles import PREFIX as ROLE_TOKEN, Role, derived_token
from agl_cluster.store.outcomes import BatchOutcome, Busy, ErrorBody, TooLarge, error_from_body, from_outcome
from agl_cluster.store.routes import (
    ATTEMPT_KEY,
    BODY_LIMIT,
    LONGEST_WAIT,
    NULL,
    PACKED,
    PREFIX,
    REQUEST_ID,
    ROLLOUT_TOKEN,
    STORED_RECORDS,
    TABLE,
    Route,
    all_routes,
    decode,
    encode,
)

_log = logging.getLogger(__name__)
_EXTRA_SECONDS = 30.0
"""Seconds that a request may take, beyond the time it asks the server to wait."""
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 2.0
_CONNECTION_ERRORS = (
    aiohttp.ClientConnectionError,
    aiohttp.ClientPayloadError,
    TimeoutError,
    ConnectionError,
)
_PROXY_ERRORS = (502, 503, 504)
"""Statuses of a proxy without its store. The store itself sends them with an ``ErrorBody`` only."""
_BUSY_STATUSES = (429, 503)
"""With ``Retry-After``: the same request may be sent again after so many seconds."""
_LONGEST_PAUSE = 30.0
"""Seconds to wait for a busy server before it is asked again, at most."""
_RESEND_SECONDS = REMEMBERED - 60.0
"""Seconds after which a change that may have been done is not sent again: the store may have forgotten its
id.
"""
_LARGE = 1 << 20
"""Bytes of a body that is sent piece by piece, so that other tasks go on."""


def new_request_id() -> str:
    """Return a fresh id. Ids grow with time, so the server's index of them grows at one end."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


class StoreClient(Store):
    """All of :class:`~agentlightning.store.base.Store`, served by ``agl store`` at ``url``: ``http(s)://…``.

    ``token``: of the operator or of a role; default: one of the role admin that is derived from
    ``AGL_SECRET``, where that is set. ``patience``: seconds to keep trying while the server cannot be
    reached or is busy; default: ``AGL_STORE_PATIENCE``, else 60.
    """

    def __init__(self, url: str, token: str | None = None, *, patience: float | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise StoreError(f"the URL of a store begins with http:// or https://, not {url!r}")
        self.url = url.rstrip("/").removesuffix(PREFIX)
        self.patience = patience_from_env() if patience is None else patience
        self._token = token
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warned = False
        self._derives = token is None
        self._use_token(token or derived_token(Role.ADMIN))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def has_role_token(self) -> bool:
        """Whether the token is one of a role (``agl token``), or derived."""
        return self._token is not None and self._token.startswith(ROLE_TOKEN)

    @property
    def given_token(self) -> str | None:
        """The token that was given; ``None``: it is derived from ``AGL_SECRET``, or there is none."""
        return None if self._derives else self._token

    def act_as(self, role: str) -> None:
        """Use the least token for what follows: that of ``role``, if the token is derived from
        ``AGL_SECRET``. A token that was given stays. Call it before the first request.
        """
        if self._derives:
            self._use_token(derived_token(Role(role)))

    def _use_token(self, token: str | None) -> None:
        self._token = token
        self._headers = {"Accept": PACKED} | ({"Authorization": f"Bearer {token}"} if token else {})

    def _open(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), headers=self._headers, auto_decompress=False
            )
        return self._session

    async def close(self) -> None:
        """Close the connections; the store itself stays."""
        if self._session is not None:
            await self._session.close()

    def for_other_loop(self) -> StoreClient:
        """Return a client with connections of its own: a connection belongs to one event loop."""
        return StoreClient(self.url, self._token, patience=self.patience)

    if not TYPE_CHECKING:  # so that a misspelt method is an error to mypy

        def __getattr__(self, name: str) -> Any:
            """Return an operation that a plugin adds (hook ``agl_store_operations``)."""
            if name.startswith("_"):
                raise AttributeError(name)
            route = all_routes().get(name)
            return store_operation(name) if route is None else partial(_method(route), self)

    async def _call(self, route: Route, /, **parameters: Any) -> Any:
        if route.mutates and parameters.get("request_id") is None:
            parameters["request_id"] = new_request_id()
        path = route.path.format_map({p: quote(str(parameters[p]), safe="") for p in route.path_parameters})
        rest = {k: v for k, v in parameters.items() if k not in route.path_parameters}
        wait = float(parameters.get("wait") or parameters.get("timeout") or 0.0)
        return await self._send(route.verb, path, rest, route.result_type, wait)

    async def _send(
        self,
        verb: str,
        path: str,
        parameters: Any,
        answer: Any,
        wait: float = 0.0,
        headers: dict[str, str] | None = None,
    ) -> Any:
        options: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(total=wait + _EXTRA_SECONDS)}
        if verb == "GET":
            options["params"] = {k: NULL if v is None else str(v) for k, v in parameters.items()}
        else:
            body, content_type = encode(parameters, packed=True)
            if len(body) > BODY_LIMIT:
                raise TooLarge(
                    f"the request has {len(body) >> 20} MiB, the store takes {BODY_LIMIT >> 20}: send less"
                )
            options |= {"data": body, "headers": {**(headers or {}), "Content-Type": content_type}}
        return await self._send_until_answered(verb, path, options, answer)

    async def _send_until_answered(self, verb: str, path: str, options: dict[str, Any], answer: Any) -> Any:
        loop = asyncio.get_running_loop()
        since, sent, pause = None, None, _FIRST_PAUSE
        while True:
            began = loop.time()
            try:
                found = await self._send_once(verb, path, options, answer)
            except _AskAgain as busy:
                since = loop.time() if since is None else since
                if loop.time() - since + busy.seconds > max(self.patience, busy.seconds):
                    raise busy.error from None
                await asyncio.sleep(busy.seconds * random.uniform(1.0, 1.25))  # not all clients at once
                continue
            except _CONNECTION_ERRORS as error:
                now = loop.time()
                since = now if since is None else since
                if sent is None and not isinstance(error, aiohttp.ClientConnectorError):
                    sent = began
                if verb != "GET" and sent is not None and now - sent > _RESEND_SECONDS:
                    raise StoreError(
                        f"the response of {self.url} to {verb} {path} was lost, and for "
                        f"{now - sent:.0f} s the server could not be asked again: the change may or may not "
                        "be done"
                    ) from error
                await self._on_connection_error(error, now - since)
            else:
                self._on_answer()
                return found
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE)

    async def _send_once(self, verb: str, path: str, options: dict[str, Any], answer: Any) -> Any:
        if len(options.get("data", b"")) > _LARGE:
            options = {**options, "data": io.BytesIO(options["data"])}
        async with self._open().request(verb, self.url + path, **options) as response:
            content = await response.read()
            if (seconds := _retry_after(response)) is not None:
                raise _AskAgain(seconds, _busy(response.status, content, response.content_type))
            return _result(response.status, content, response.content_type, answer)

    async def _on_connection_error(self, error: Exception, seconds: float) -> None:
        """Warn once of failed tries; raise when the first one was more than ``patience`` seconds ago."""
        reason = f"{type(error).__name__}: {error}"
        if seconds > self.patience:
            raise StoreError(
                f"no store answers at {self.url} ({reason}); gave up after {seconds:.0f} s. Start one with "
                "`agl store`"
            ) from error
        if not self._warned:
            self._warned = True
            _log.warning(
                "no store answers at %s yet (%s); trying again for %.0f s", self.url, reason, self.patience
            )

    def _on_answer(self) -> None:
        if self._warned:
            self._warned = False
            _log.info("the store at %s answers again", self.url)

    async def batch(
        self, calls: Sequence[tuple[str, dict[str, Any]]], *, request_id: str | None = None
    ) -> list[Any]:
        """Do several calls in order, in one request and one commit.

        Returns a result for each call, or its exception; the other calls stand. No call may wait: leave
        ``wait`` and ``timeout`` out, or give 0.
        """
        routes = all_routes()
        if unknown := [method for method, _ in calls if method not in routes]:
            raise ValueError(f"there is no store method {unknown[0]!r}")
        items = [{"method": method, "params": params} for method, params in calls]
        headers = {REQUEST_ID: request_id or new_request_id()}
        outcomes = await self._send("POST", f"{PREFIX}/batch", items, list[BatchOutcome], headers=headers)
        kinds = [routes[method].result_type for method, _ in calls]
        return [from_outcome(*pair) for pair in zip(kinds, outcomes, strict=True)]

    async def attempt_key(self, rollout_id: str, attempt_id: str) -> str:
        """Return the key of an attempt that this runner has leased. :class:`Conflict`: the store has no
        ``AGL_SECRET`` to make it with.
        """
        ids = {"rollout_id": quote(rollout_id, safe=""), "attempt_id": quote(attempt_id, safe="")}
        key: str = await self._send("POST", ATTEMPT_KEY.format_map(ids), {}, str)
        return key

    async def rollout_token(self, rollout_id: str, worker_id: str, ttl: float | None = None) -> str:
        """Return a token for the runner ``worker_id`` and this rollout alone, valid ``ttl`` seconds.
        :class:`Conflict`: the store has no ``AGL_SECRET`` to make it with.
        """
        path = ROLLOUT_TOKEN.format_map({"rollout_id": quote(rollout_id, safe="")})
        given = {"worker_id": worker_id, "ttl": ttl}
        token: str = await self._send("POST", path, given, str)
        return token

    async def records(self, rollout_ids: Sequence[str]) -> list[Record]:
        found: list[Record] = []
        for page in record_pages(rollout_ids):
            stored: list[StoredRecord] = await self._send("POST", STORED_RECORDS, page, list[StoredRecord])
            found += [one.whole() for one in stored]
        return found


class _AskAgain(Exception):
    """The server is busy: ``seconds`` to wait, and the error if that is too long."""

    def __init__(self, seconds: float, error: Exception) -> None:
        super().__init__(seconds)
        self.seconds, self.error = seconds, error


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of ``Retry-After``, within bounds; ``None`` if the answer has none. A date there
    counts as one second.
    """
    given = response.headers.get("Retry-After")
    if response.status not in _BUSY_STATUSES or given is None:
        return None
    return min(float(given), _LONGEST_PAUSE) if given.isdecimal() else 1.0


def _busy(status: int, content: bytes, content_type: str) -> Exception:
    try:
        return error_from_body(decode(content, content_type, ErrorBody))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Busy(f"HTTP {status}: the server is busy, and was for longer than the client's patience")


def _result(status: int, content: bytes, content_type: str, answer: Any) -> Any:
    try:
        if status >= 400:
            raise error_from_body(decode(content, content_type, ErrorBody))
        return decode(content, content_type, answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if status in _PROXY_ERRORS:
            raise ConnectionError(f"HTTP {status}, {content_type}: a proxy without its store") from None
        start = content[:200].decode(errors="replace")
        raise StoreError(
            f"the server is no store of Agent Lightning: HTTP {status}, {content_type}: {start!r}"
        ) from None


_WAITS: Mapping[str, tuple[str, Callable[[dict[str, Any], Any], bool]]] = {
    "dequeue_rollout": ("wait", lambda given, found: found is not None),
    "dequeue_many_rollouts": ("wait", lambda given, found: bool(found)),
    "wait_for_rollouts": (
        "timeout",
        lambda given, found: {r.rollout_id for r in found} >= set(given["rollout_ids"]),
    ),
}
"""Method that waits → the parameter with the seconds, and whether its result ends the wait."""


def _method(route: Route) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(route.operation)
    this = next(iter(signature.parameters))

    async def call(self: StoreClient, *args: Any, **given: Any) -> Any:
        bound = signature.bind(self, *args, **given)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != this}
        if route.name in _WAITS:
            return await _wait(self, route, arguments)
        return await self._call(route, **arguments)

    call.__name__, call.__qualname__ = route.name, f"StoreClient.{route.name}"
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


async def _wait(client: StoreClient, route: Route, arguments: dict[str, Any]) -> Any:
    """Ask again until the wait ends: a server holds one request for ``LONGEST_WAIT`` seconds at most."""
    seconds_name, ends = _WAITS[route.name]
    seconds = arguments[seconds_name]
    check_seconds(seconds_name, seconds)
    clock = asyncio.get_running_loop().time
    deadline = math.inf if seconds is None else clock() + seconds
    while True:
        arguments[seconds_name] = max(0.0, min(deadline - clock(), LONGEST_WAIT))
        found = await client._call(route, **arguments)
        if ends(arguments, found) or clock() >= deadline:
            return found


for _route in TABLE:
    if _route.name not in vars(StoreClient):
        setattr(StoreClient, _route.name, _method(_route))
