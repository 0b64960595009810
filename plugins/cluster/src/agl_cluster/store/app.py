"""The store as a web application: ``/v1/agl/…`` (:mod:`agl_cluster.store.routes`) and ``/v1/traces``
(:mod:`.traces`).

A response is sent after its write is on file. Errors are ``{"error", "message"}``. ``POST /v1/agl/batch``
takes a list of calls and does them in order, as one write under the request id of the header
``Idempotency-Key``; each call has a result of its own.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import asdict

from agentlightning.log_limit import limited
from agentlightning.store.base import Conflict, Store, StoreError
from agentlightning.store.bounds import check_seconds
from agentlightning.store.sql import schema
from agentlightning.store.sql.reading import stored_records
from agentlightning.store.sql.store import SQLStore
from agentlightning.types.arrays import from_either
from agentlightning.types.base import RequestRefused
from agentlightning.webserver.body import NotPlain, check_container_count, check_plain, decoded, read
from agentlightning.webserver.guard import guard
from agl_cluster.access_log import log_requests
from agl_cluster.probes import Probes
from agl_cluster.roles import Role
from agl_cluster.store import openapi, traces
from agl_cluster.store.access import StoreAccess, StoreCaller, check_attempt_open
from agl_cluster.store.batch import batch, check_writable
from agl_cluster.store.load import RETRY_AFTER, Load
from agl_cluster.store.metrics import METRICS, METRICS_ROLE, RequestCounts, metrics_page
from agl_cluster.store.outcomes import BatchOutcome, Busy, ErrorBody, Forbidden, error_body, to_outcome
from agl_cluster.store.routes import (
    ATTEMPT_KEY,
    ATTEMPT_KEY_ROLE,
    BATCH_ROLE,
    BODY_LIMIT,
    BY_NAME,
    LONGEST_WAIT,
    NULL,
    PACKED,
    PREFIX,
    REQUEST_ID,
    ROLLOUT_TOKEN,
    ROLLOUT_TOKEN_ROLE,
    STORED_RECORDS,
    WAITING,
    BatchItem,
    RolloutTokenBody,
    Route,
    all_routes,
    decode,
    encode,
    status_of,
)

_log = limited(__name__)
WebHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request, StoreCaller], Awaitable[web.StreamResponse]]


def create_app(store: SQLStore, access: StoreAccess | None = None) -> web.Application:
    """Make the application of a store. Where ``access`` is guarded, every request but probes and the OpenAPI
    document must bear a token or a key whose role the route admits. Otherwise requests of web pages are
    refused (:mod:`agentlightning.webserver.guard`).
    """
    access = access or StoreAccess()
    load, counts = Load(), RequestCounts()
    guards = [] if access.guarded else [_refuse_foreign(store)]
    app = web.Application(middlewares=[counts.middleware, *guards])
    log_requests(app, "store")
    for route in all_routes().values():
        handler = _authenticated(_handler(store, route, load), access, route.name, route.least)
        app.router.add_route(route.verb, route.path, handler)
    records = BY_NAME["records"]
    extra: tuple[tuple[str, Handler, str, Role], ...] = (
        (STORED_RECORDS, _stored_records(store), records.name, records.least),
        (f"{PREFIX}/batch", _batch_handler(store, load), "batch", BATCH_ROLE),
        (ATTEMPT_KEY, _attempt_key(store, access), "attempt_key", ATTEMPT_KEY_ROLE),
        (ROLLOUT_TOKEN, _rollout_token(store, access), "rollout_token", ROLLOUT_TOKEN_ROLE),
    )
    for path, handle, name, least in extra:
        app.router.add_post(path, _authenticated(handle, access, name, least))
    app.router.add_get(f"{PREFIX}/health", _health)
    app.router.add_get(openapi.PATH, _openapi)
    page = metrics_page(store, load, counts)
    app.router.add_get(METRICS, _authenticated(page, access, "metrics", METRICS_ROLE))
    Probes(partial(_problems, store, load)).add_to(app)
    traces.add_route(app, store, access, load)
    return app


def _refuse_foreign(store: SQLStore) -> Any:
    async def refuse(request: web.Request, why: RequestRefused) -> web.Response:
        with suppress(StoreError):  # the request is refused even if that cannot be counted
            await store.count("refused", why.reason)
        if request.path == traces.PATH:
            return traces.refusal_response(request, why)
        return _answer(request, ErrorBody("Forbidden", why.message), why.status)

    return guard(refuse)


async def _problems(store: SQLStore, load: Load) -> list[str]:
    """Return why the server cannot take work now."""
    problems = ["busy: as many writes as it takes are under way"] if load.full else []
    try:
        await check_writable(store)
    except StoreError as error:
        problems.append(str(error))
    return problems


async def _openapi(_: web.Request) -> web.Response:
    return web.json_response(openapi.document())


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "schema_version": schema.SCHEMA_VERSION})


def _authenticated(handler: Handler, access: StoreAccess, name: str, least: Role) -> WebHandler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            caller = access.caller(request.headers.get("Authorization", ""))
        except RequestRefused as refused:
            error = "AttemptEnded" if refused.status == 409 else "Unauthorized"
            return _answer(request, ErrorBody(error, refused.message), refused.status)
        try:
            caller.check(name, least)
            if request.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise RequestRefused(415, "compressed", "send the body as it is, not compressed")
            return await handler(request, caller)
        except RequestRefused as refused:
            return _answer(request, ErrorBody("StoreError", str(refused)), refused.status)
        except Exception as error:
            body = error_body(error)
            status = status_of(body)
            if status >= 500 and not isinstance(error, Busy):  # such as a full disk: its operator must see it
                _log.exception("error in %s %s", request.method, request.path)
            return _answer(request, body, status)

    return guarded


def _answer(request: web.Request, value: Any, status: int = 200) -> web.Response:
    packed = PACKED in request.headers.get("Accept", "")
    body, content_type = encode(value, packed)
    headers = {"Content-Type": content_type}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(value, ErrorBody) and value.error == Busy.__name__:
        headers["Retry-After"] = RETRY_AFTER
    return web.Response(body=body, status=status, headers=headers)


def _handler(store: Store, route: Route, load: Load) -> Handler:
    method = getattr(store, route.name)
    loads = route.mutates and route.name not in WAITING

    async def handle(request: web.Request, caller: StoreCaller) -> web.Response:
        if caller.claims is not None:
            await check_attempt_open(store, caller.claims.rollout_id, caller.claims.attempt_id)
        with load.writing(request.content_length or 0) if loads else nullcontext():
            parameters = {**await _parameters(request, route), **request.match_info}
            caller.confine(route, parameters)
            return _answer(request, await method(**_cap_waits(parameters)))

    return handle


async def _parameters(request: web.Request, route: Route) -> dict[str, Any]:
    """Return the parameters of the query string or the body."""
    if route.verb == "GET":
        asked = {name: None if value == NULL else value for name, value in request.query.items()}
        return asdict(msgspec.convert(asked, route.body, strict=False))
    body = await read(request, BODY_LIMIT)
    return asdict(await _decoded(body or b"{}", request.content_type if body else "", route.body))


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


def _attempt_key(store: Store, access: StoreAccess) -> Handler:
    async def handle(request: web.Request, caller: StoreCaller) -> web.Response:
        if access.keys is None:
            raise Conflict("this store makes no keys of attempts: start it with the run's AGL_SECRET")
        rollout_id, attempt_id = request.match_info["rollout_id"], request.match_info["attempt_id"]
        caller.confine_to_rollout(request.match_info)
        rollout = await store.get_rollout_by_id(rollout_id)
        attempt = await check_attempt_open(store, rollout_id, attempt_id)
        run_id = rollout.run_id or ""
        return _answer(request, access.keys.mint(rollout_id, attempt_id, run_id=run_id, fence=attempt.fence))

    return handle


def _rollout_token(store: Store, access: StoreAccess) -> Handler:
    async def handle(request: web.Request, caller: StoreCaller) -> web.Response:
        body = await read(request, BODY_LIMIT)
        asked = await _decoded(body or b"{}", request.content_type if body else "", RolloutTokenBody)
        rollout = await store.get_rollout_by_id(request.match_info["rollout_id"])
        return _answer(request, access.rollout_token(rollout, asked.worker_id, asked.ttl))

    return handle


def _stored_records(store: SQLStore) -> Handler:
    async def handle(request: web.Request, caller: StoreCaller) -> web.Response:
        rollout_ids = await _decoded(await read(request, BODY_LIMIT), request.content_type, list[str])
        return _answer(request, await stored_records(store, rollout_ids))

    return handle


def _batch_handler(store: SQLStore, load: Load) -> Handler:
    def call(item: BatchItem, caller: StoreCaller) -> tuple[str, dict[str, Any]] | Exception:
        """Return method and parameters of a call, or the error in them."""
        route = all_routes().get(item.method)
        if route is None:
            return item.method, {}
        try:
            found = msgspec.convert(item.params, route.parameters, dec_hook=from_either)
            check_json(found)
            parameters = asdict(found)
            caller.confine(route, parameters)
            return item.method, parameters
        except (ValueError, Forbidden) as error:
            return error

    async def handle(request: web.Request, caller: StoreCaller) -> web.Response:
        with load.writing(request.content_length or 0):
            items = await _decoded(await read(request, BODY_LIMIT), request.content_type, list[BatchItem])
            calls = [call(item, caller) for item in items]
            good = [c for c in calls if not isinstance(c, Exception)]
            found = iter(await batch(store, good, request_id=request.headers.get(REQUEST_ID)))
        return _answer(
            request, [_batch_outcome(c if isinstance(c, Exception) else next(found)) for c in calls]
        )

    return handle


def _batch_outcome(found: Any) -> BatchOutcome:
    if isinstance(found, Exception) and status_of(error_body(found)) >= 500:
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
