"""Requests to a store server: sent again with the same request id until they are answered.

Every change bears a request id, so a change whose answer was lost is not done twice. A client may come before
its server: it waits, says so once, and gives up after ``patience`` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import msgspec

from agentlightning.store.base import StoreError
from agentlightning.store.routes import (
    BY_NAME,
    NULL,
    PACKED,
    PREFIX,
    REQUEST_ID,
    Failure,
    Outcome,
    decode,
    encode,
    raised,
    result,
)

_log = logging.getLogger(__name__)
_SLACK = 30.0
"""Seconds beyond its own wait that a request may take."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ConnectionError)


def request_id() -> str:
    """A fresh id. Ids grow with time, so that the server's index of them grows at one end."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


class BatchCall(NamedTuple):
    """One call of :meth:`Transport.batch`."""

    method: str
    params: dict[str, Any]


class Transport:
    """A connection to the store at ``url``.

    ``patience``: seconds to keep trying while the server cannot be reached.
    """

    def __init__(self, url: str, token: str | None = None, *, patience: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise StoreError(f"the URL of a store begins with http:// or https://, not {url!r}")
        self.url = url.rstrip("/").removesuffix(PREFIX)
        self.patience = patience
        self._headers = {"Accept": PACKED} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _open(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            self._loop = loop
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, auto_decompress=False
            )
        return self._session

    async def close(self) -> None:
        """Close the connections; the store itself stays."""
        if self._session is not None:
            await self._session.close()

    async def _call(self, name: str, /, **parameters: Any) -> Any:
        route = BY_NAME[name]
        if route.mutates and parameters.get("request_id") is None:
            parameters["request_id"] = request_id()
        path = route.path.format_map({p: quote(str(parameters[p]), safe="") for p in route.places})
        rest = {k: v for k, v in parameters.items() if k not in route.places}
        wait = float(parameters.get("wait") or parameters.get("timeout") or 0.0)
        return await self._send(route.verb, path, rest, route.answer, wait)

    async def _send(
        self,
        verb: str,
        path: str,
        parameters: Any,
        answer: Any,
        wait: float = 0.0,
        headers: dict[str, str] | None = None,
    ) -> Any:
        query: dict[str, str] | None = None
        body: bytes | None = None
        headers = headers or {}
        if verb == "GET":
            query = {k: NULL if v is None else str(v) for k, v in parameters.items()}
        else:
            body, headers["Content-Type"] = encode(parameters, packed=True)
        timeout = aiohttp.ClientTimeout(total=wait + _SLACK)
        loop = asyncio.get_running_loop()
        since, pause = loop.time(), _FIRST_PAUSE
        while True:
            try:
                async with self._open().request(
                    verb, self.url + path, params=query, data=body, headers=headers, timeout=timeout
                ) as response:
                    content = await response.read()
                    return _result(response.status, content, response.content_type, answer)
            except _BROKEN as error:
                waited = loop.time() - since
                if waited > self.patience + wait:
                    raise StoreError(
                        f"no store answers at {self.url} ({type(error).__name__}: {error}); gave up after "
                        f"{waited:.0f} s. Start one with `agl store`"
                    ) from error
                if pause == _FIRST_PAUSE:
                    _log.warning(
                        "no store answers at %s yet (%s); trying again for %.0f s",
                        self.url,
                        error,
                        self.patience,
                    )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def batch(self, calls: Sequence[BatchCall | tuple[str, dict[str, Any]]]) -> list[Any]:
        """Several calls in one request and one commit, done in order.

        A result each; an error is returned in its place, not raised, for the others stand. Nothing waits:
        ``wait`` and ``timeout`` are to be left out or 0.
        """
        items: list[dict[str, Any]] = []
        for method, params in calls:
            if method not in BY_NAME:
                raise ValueError(f"there is no store method {method!r}")
            items.append({"method": method, "params": params})
        headers = {REQUEST_ID: request_id()}
        outcomes = await self._send("POST", f"{PREFIX}/batch", items, list[Outcome], headers=headers)
        return [result(item["method"], found) for item, found in zip(items, outcomes, strict=True)]


def _result(status: int, content: bytes, content_type: str, answer: Any) -> Any:
    try:
        if status >= 400:
            raise raised(decode(content, content_type, Failure))
        return decode(content, content_type, answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        start = content[:200].decode(errors="replace")
        raise StoreError(
            f"no store of ours answers there: HTTP {status}, {content_type}: {start!r}"
        ) from None
