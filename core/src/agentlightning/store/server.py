"""The store over HTTP: ``/v1/agl/…`` (see :mod:`.routes`), for processes and machines that do not own the
file.

An answer is sent after its write is on file. Errors are ``{"error", "message"}``. ``POST /v1/agl/batch``
takes a list of calls and does them in order, as one write under the request id of its header
``Idempotency-Key``; each has its own outcome.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import logging
import typing
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from agentlightning import collector
from agentlightning.loopback import is_loopback
from agentlightning.store import schema
from agentlightning.store.base import Store, StoreError
from agentlightning.store.routes import (
    BY_NAME,
    LONGEST_WAIT,
    NULL,
    PACKED,
    PREFIX,
    REQUEST_ID,
    TABLE,
    Failure,
    Item,
    Outcome,
    Route,
    decode,
    encode,
    failure,
    outcome,
)
from agentlightning.store.sqlite import SQLiteStore

_log = logging.getLogger(__name__)
_BODY_LIMIT = 256 << 20
"""Bytes of one request."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(store: SQLiteStore, token: str | None = None) -> web.Application:
    """The application over a store; with a ``token`` every request but ``/health`` must bear it."""
    app = web.Application(client_max_size=_BODY_LIMIT)
    for route in TABLE:
        app.router.add_route(route.verb, route.path, _guarded(_handler(store, route), token))
    app.router.add_post(f"{PREFIX}/batch", _guarded(_batch_handler(store), token))
    app.router.add_get(f"{PREFIX}/health", _health)
    return app


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "schema_version": schema.SCHEMA_VERSION})


def _guarded(handler: Handler, token: str | None) -> Handler:
    expected = None if token is None else f"Bearer {token}".encode()

    async def guarded(request: web.Request) -> web.StreamResponse:
        if expected is not None:
            given = request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, expected):
                return _answer(request, Failure("Unauthorized", "the bearer token is missing or wrong"), 401)
        try:
            return await handler(request)
        except Exception as error:
            body, status = failure(error)
            if status == 500:
                _log.exception("error in %s %s", request.method, request.path)
            return _answer(request, body, status)

    return guarded


def _answer(request: web.Request, value: Any, status: int = 200) -> web.Response:
    packed = PACKED in request.headers.get("Accept", "")
    body, content_type = encode(value, packed)
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _handler(store: Store, route: Route) -> Handler:
    method = getattr(store, route.name)
    in_body = _without(route)

    async def handle(request: web.Request) -> web.Response:
        if route.verb == "GET":
            asked = {name: None if value == NULL else value for name, value in request.query.items()}
            given: dict[str, Any] = {**asked, **request.match_info}
            parameters = _arguments(msgspec.convert(given, route.parameters, strict=False))
        else:
            body = await request.read()
            found = decode(body or b"{}", request.content_type if body else "", in_body)
            parameters = {**_arguments(found), **request.match_info}
        return _answer(request, await method(**_bounded(parameters)))

    return handle


def _arguments(parameters: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(parameters)


def _without(route: Route) -> type[msgspec.Struct]:
    """The parameters that come in the body: all but those in the path."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(route.parameters):
        if field.name not in route.places:
            required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
            fields.append((field.name, field.type, *([] if required else [field.default])))
    return msgspec.defstruct(route.name, fields, kw_only=True, forbid_unknown_fields=True)


def _bounded(parameters: dict[str, Any]) -> dict[str, Any]:
    """No request is held for longer than ``LONGEST_WAIT``."""
    if "wait" in parameters:
        parameters["wait"] = min(parameters["wait"], LONGEST_WAIT)
    if "timeout" in parameters:
        timeout = parameters["timeout"]
        parameters["timeout"] = LONGEST_WAIT if timeout is None else min(timeout, LONGEST_WAIT)
    return parameters


def _batch_handler(store: SQLiteStore) -> Handler:
    def call(item: Item) -> tuple[str, dict[str, Any]] | Exception:
        """What is asked for, or what is wrong with it."""
        route = BY_NAME.get(item.method)
        if route is None:
            return item.method, {}
        try:
            return item.method, _arguments(msgspec.convert(item.params, route.parameters))
        except msgspec.ValidationError as error:
            return error

    async def handle(request: web.Request) -> web.Response:
        items = decode(await request.read(), request.content_type, list[Item])
        calls = [call(item) for item in items]
        good = [c for c in calls if not isinstance(c, Exception)]
        found = iter(await store.batch(good, request_id=request.headers.get(REQUEST_ID)))
        return _answer(request, [_told(c if isinstance(c, Exception) else next(found)) for c in calls])

    return handle


def _told(found: Any) -> Outcome:
    if isinstance(found, Exception) and failure(found)[1] == 500:
        _log.error("error in a batch", exc_info=found)
    return outcome(found)


class Served(typing.NamedTuple):
    """A store being served."""

    store: SQLiteStore
    url: str
    runner: web.AppRunner

    async def close(self) -> None:
        """Answer what is under way, then close the store."""
        self.store.signals.release()
        await self.runner.cleanup()
        await self.store.close()


async def start(
    path: str | Path | SQLiteStore | None = None,
    host: str = "127.0.0.1",
    port: int = 4747,
    token: str | None = None,
) -> Served:
    """Open the store (or take an open one) and serve it; ``port=0`` takes a free one."""
    if token is None and not is_loopback(host):
        raise StoreError(
            f"refusing to serve the store on {host} without a token: anybody there could write to it"
        )
    store = path if isinstance(path, SQLiteStore) else SQLiteStore(path)
    runner = web.AppRunner(
        create_app(store, token), access_log=None, handler_cancellation=True, shutdown_timeout=5.0
    )
    try:
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError as error:
        await runner.cleanup()
        await store.close()
        raise StoreError(f"cannot serve the store on {host}:{port}: {error.strerror or error}") from error
    bound = runner.addresses[0][1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
    if store.db.lock is not None:
        store.db.lock.announce(url)
    return Served(store, url, runner)


async def serve(
    path: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 4747,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or cancellation, then close in good order.

    ``ready`` is given the URL once the server listens.
    """
    import signal

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except (NotImplementedError, RuntimeError):  # Windows, or not the main thread: cancellation ends it
            break
    served = await start(path, host, port, token)
    gc.collect()
    gc.freeze()  # what is loaded by now stays; with rarer collections, a sixth less CPU per request
    collector.relax()
    try:
        if ready is not None:
            ready(served.url)
        await stop.wait()
    finally:
        collector.restore()
        gc.unfreeze()
        await served.close()
