"""The store as a web application: ``/v1/agl/…`` (:mod:`agentlightning.store.routes`) and ``/v1/traces``
(:mod:`.traces`).

A response is sent after its write is on file. Errors are ``{"error", "message"}``. ``POST /v1/agl/batch``
takes a list of calls and does them in order, as one write under the request id of the header
``Idempotency-Key``; each call has a result of its own.
"""

from __future__ import annotations

import hmac
import logging
import os
import typing
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import asdict

from agentlightning.keys import Keys
from agentlightning.store.base import Store, StoreError
from agentlightning.store.bounds import check_seconds
from agentlightning.store.http import traces
from agentlightning.store.routes import (
    BODY_LIMIT,
    BY_NAME,
    LONGEST_WAIT,
    NULL,
    PACKED,
    PREFIX,
    REQUEST_ID,
    STORED_RECORDS,
    TABLE,
    BatchItem,
    BatchOutcome,
    ErrorBody,
    Route,
    decode,
    encode,
    error_body,
    to_outcome,
)
from agentlightning.store.sql import schema
from agentlightning.store.sql.store import SQLStore
from agentlightning.types.arrays import from_either
from agentlightning.types.base import RequestRefused
from agentlightning.webserver.body import NotPlain, check_container_count, check_plain, decoded, read
from agentlightning.webserver.guard import guard

_log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(store: SQLStore, token: str | None = None) -> web.Application:
    """Make the application of a store. With a ``token``, every request but ``/health`` must bear it. Without
    a token, requests of web pages are refused (:mod:`agentlightning.webserver.guard`).

    Where ``AGL_SECRET`` is set, spans may also come with an attempt's key.
    """
    middlewares = [] if token is not None else [_refuse_foreign(store)]
    app = web.Application(middlewares=middlewares)
    for route in TABLE:
        app.router.add_route(route.verb, route.path, _authenticated(_handler(store, route), token))
    app.router.add_post(STORED_RECORDS, _authenticated(_stored_records(store), token))
    app.router.add_post(f"{PREFIX}/batch", _authenticated(_batch_handler(store), token))
    app.router.add_get(f"{PREFIX}/health", _health)
    traces.add_route(app, store, token, Keys.from_env() if "AGL_SECRET" in os.environ else None)
    return app


def _refuse_foreign(store: SQLStore) -> Any:
    async def refuse(request: web.Request, why: RequestRefused) -> web.Response:
        with suppress(StoreError):  # the request is refused even if that cannot be counted
            await store.count("refused", why.reason)
        if request.path == traces.PATH:
            return traces.refusal_response(request, why)
        return _answer(request, ErrorBody("Forbidden", why.message), why.status)

    return guard(refuse)


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "schema_version": schema.SCHEMA_VERSION})


def _authenticated(handler: Handler, token: str | None) -> Handler:
    expected = None if token is None else f"Bearer {token}".encode()

    async def guarded(request: web.Request) -> web.StreamResponse:
        if expected is not None:
            given = request.headers.get("Authorization", "").encode(errors="replace")
            if not hmac.compare_digest(given, expected):
                return _answer(
                    request, ErrorBody("Unauthorized", "the bearer token is missing or wrong"), 401
                )
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return _answer(request, ErrorBody("StoreError", "send the body as it is, not compressed"), 415)
        try:
            return await handler(request)
        except RequestRefused as refused:
            return _answer(request, ErrorBody("StoreError", str(refused)), refused.status)
        except Exception as error:
            body, status = error_body(error)
            if status >= 500:  # the server's own failure (a full disk, say): its operator must see it too
                _log.exception("error in %s %s", request.method, request.path)
            return _answer(request, body, status)

    return guarded


def _answer(request: web.Request, value: Any, status: int = 200) -> web.Response:
    packed = PACKED in request.headers.get("Accept", "")
    body, content_type = encode(value, packed)
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _handler(store: Store, route: Route) -> Handler:
    method = getattr(store, route.name)

    async def handle(request: web.Request) -> web.Response:
        if route.verb == "GET":
            asked = {name: None if value == NULL else value for name, value in request.query.items()}
            found = msgspec.convert(asked, route.body, strict=False)
        else:
            body = await read(request, BODY_LIMIT)
            found = await _decoded(body or b"{}", request.content_type if body else "", route.body)
        parameters = {**asdict(found), **request.match_info}
        return _answer(request, await method(**_cap_waits(parameters)))

    return handle


async def _decoded(body: bytes, content_type: str, kind: Any) -> Any:
    """Decode a body as ``kind``; a large one in a thread, so that other requests go on."""

    def work(raw: bytes) -> Any:
        if content_type != PACKED:
            check_container_count(raw)
        found = decode(raw, content_type, kind)
        if kind is not list[BatchItem]:  # the calls of a batch are checked one by one
            check_json(found)
        return found

    return await decoded(body, work)


def _cap_waits(parameters: dict[str, Any]) -> dict[str, Any]:
    """Limit waits to ``LONGEST_WAIT``."""
    for name in parameters.keys() & {"wait", "timeout"}:
        seconds = parameters[name]
        check_seconds(name, seconds)  # min(NaN, x) is NaN
        parameters[name] = LONGEST_WAIT if seconds is None else min(seconds, LONGEST_WAIT)
    return parameters


def _stored_records(store: SQLStore) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        rollout_ids = await _decoded(await read(request, BODY_LIMIT), request.content_type, list[str])
        return _answer(request, await store.stored_records(rollout_ids))

    return handle


def _batch_handler(store: SQLStore) -> Handler:
    def call(item: BatchItem) -> tuple[str, dict[str, Any]] | Exception:
        """Return method and parameters of a call, or the error in them."""
        route = BY_NAME.get(item.method)
        if route is None:
            return item.method, {}
        try:
            found = msgspec.convert(item.params, route.parameters, dec_hook=from_either)
            check_json(found)
            return item.method, asdict(found)
        except ValueError as error:
            return error

    async def handle(request: web.Request) -> web.Response:
        items = await _decoded(await read(request, BODY_LIMIT), request.content_type, list[BatchItem])
        calls = [call(item) for item in items]
        good = [c for c in calls if not isinstance(c, Exception)]
        found = iter(await store.batch(good, request_id=request.headers.get(REQUEST_ID)))
        return _answer(
            request, [_batch_outcome(c if isinstance(c, Exception) else next(found)) for c in calls]
        )

    return handle


def _batch_outcome(found: Any) -> BatchOutcome:
    if isinstance(found, Exception) and error_body(found)[1] >= 500:
        _log.error("error in a batch", exc_info=found)
    return to_outcome(found)


# ---------------------------------------------------------------------------------------------------- content
def check_json(value: Any, where: str = "$") -> None:
    """Check that values of type ``Any`` (a task, attributes, a message) are JSON; decoding does not.

    ``ValueError`` names the place of a value of another type, or nested too deep.
    """
    if isinstance(value, msgspec.Struct):
        for name in _untyped_fields(type(value)):
            check_json(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        for place, one in enumerate(value):
            check_json(one, f"{where}[{place}]")
    elif value and not isinstance(value, str | int | float | bytes | msgspec.UnsetType):
        _check_plain(value, where)


def _check_plain(value: Any, where: str) -> None:
    try:
        check_plain(_as_builtins(value))
    except NotPlain as error:
        raise ValueError(f"{error} - at `{where}`") from None


def _as_builtins(value: Any) -> Any:
    """Structs in a mapping (resources) as plain dicts."""
    if isinstance(value, dict) and any(isinstance(one, msgspec.Struct) for one in value.values()):
        return {key: msgspec.to_builtins(one) for key, one in value.items()}
    return value


@cache
def _untyped_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of type ``Any``, and the fields of structs with such fields."""
    return tuple(name for name, hint in typing.get_type_hints(kind).items() if _is_untyped(hint))


def _is_untyped(hint: Any) -> bool:
    if hint is Any or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return hint is Any or bool(_untyped_fields(hint))
    return any(_is_untyped(inner) for inner in typing.get_args(hint))
