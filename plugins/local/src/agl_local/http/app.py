"""The OpenAI API over engines, one per policy, routed by the request's ``model``.

Routes: POST /v1/chat/completions, /v1/completions, /tokenize (a prompt's ids and their number); GET
/v1/models, /health, /metrics; and, for the driver only (header ``X-AGL-Admin-Token``): POST /agl/weights,
/agl/pause, /agl/resume, GET /agl/version. Without an admin token these are closed. Where there is a token
(``AGL_LOCAL_TOKEN``), every other request but /health bears it as its API key; where there is none, what a
web page may have sent is refused. Run the app with ``serve``: it makes aiohttp cancel a handler whose client
has gone, which frees the slot.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from agentlightning.types.base import RequestRefused
from agentlightning.webserver import app_runner, listen
from agentlightning.webserver.body import NotPlain, check_container_count, check_plain, read
from agentlightning.webserver.guard import guard
from agentlightning.webserver.loopback import cannot_listen, check_interface, check_token
from agl_local.generation.engine import Engine
from agl_local.generation.orders import PauseMode, pause_mode
from agl_local.generation.request import Completion, EngineError, PromptTooLong, Request
from agl_local.http.answers import Answer
from agl_local.http.batches import Batches
from agl_local.http.fields import ApiError
from agl_local.http.metrics import prometheus
from agl_local.http.protocol import Call, parse_chat, parse_completion, parse_tokenize
from agl_local.http.stream import Mailbox, stream_answer
from agl_local.policy.shared import Handover, MappedWeights
from agl_local.policy.weights import StateError

ADMIN_HEADER = "X-AGL-Admin-Token"
TOKEN_VARIABLE = "AGL_LOCAL_TOKEN"
MAX_BODY = 16 * 2**20
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENGINES: web.AppKey[dict[str, Engine]] = web.AppKey("engines", dict)
_MAILBOX: web.AppKey[Mailbox] = web.AppKey("mailbox", Mailbox)
_GUARDED: web.AppKey[bool] = web.AppKey("guarded", bool)
_PARSING: web.AppKey[dict[str, Batches]] = web.AppKey("parsing", dict)
_MAPPED: web.AppKey[dict[str, MappedWeights]] = web.AppKey("mapped", dict)


def create_app(
    engines: dict[str, Engine],
    *,
    admin_token: str | None = None,
    token: str | None = None,
    open_metrics: bool = False,
    files: Mapping[str, Sequence[int]] | None = None,
) -> web.Application:
    """The application that serves ``engines`` by policy name; it does not close them.

    ``open_metrics``: whether ``/metrics``, which has counts alone, needs no token. ``files``: by policy those
    of the trainer's ``policy.shared.SharedWeights``, from which new weights are taken.
    """
    if not engines:
        raise ValueError("at least one engine is needed")
    token = check_token(token, TOKEN_VARIABLE)
    open_paths = ("/health", "/metrics") if open_metrics else ("/health",)

    def is_admin(request: web.Request) -> bool:
        return _same(request.headers.get(ADMIN_HEADER, ""), admin_token)

    @web.middleware
    async def doors(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/agl/"):
            if not is_admin(request):
                return _error(ApiError(403, f"{ADMIN_HEADER} is missing or wrong", code="forbidden"))
        elif token is not None and request.path not in open_paths and not is_admin(request):
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not _same(given, token):
                said = f"the API key is missing or wrong: it is the engine's {TOKEN_VARIABLE}"
                return _error(ApiError(401, said, code="unauthorized"))
        return await handler(request)

    no_pages = [] if token is not None else [guard(_refuse_cross_origin, trusted=is_admin)]
    app = web.Application(middlewares=[_errors, doors, *no_pages])
    app[_ENGINES] = engines
    app[_PARSING] = {name: Batches() for name in engines}
    app[_GUARDED] = token is not None
    app[_MAPPED] = {name: MappedWeights((files or {}).get(name, ())) for name in engines}
    app[_MAILBOX] = Mailbox()
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_post("/v1/completions", _completions)
    app.router.add_post("/tokenize", _tokenize)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _health)
    app.router.add_get("/metrics", _metrics)
    app.router.add_post("/agl/weights", _weights)
    app.router.add_post("/agl/pause", _pause)
    app.router.add_post("/agl/resume", _resume)
    app.router.add_get("/agl/version", _version)
    return app


async def serve(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> tuple[web.AppRunner, str]:
    """Start ``app``; returns the runner (``await runner.cleanup()`` stops it) and its address,
    ``http://host:port``. A host that other machines can reach is refused where the app has no token.
    """
    check_interface("the engine", host, guarded=app[_GUARDED], variable=TOKEN_VARIABLE)
    runner = app_runner(app)
    try:
        return runner, await listen(runner, host, port)
    except OSError as error:
        await runner.cleanup()
        raise cannot_listen("the engine", host, port, error, "--port") from error


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _error(error)
    except web.HTTPException as error:
        return _error(ApiError(error.status, error.text or error.reason))
    except PromptTooLong as error:
        return _error(ApiError(400, str(error), code="context_length_exceeded"))
    except EngineError as error:
        return _error(ApiError(500, str(error), code="engine_error"))


async def _refuse_cross_origin(_: web.Request, why: RequestRefused) -> web.Response:
    return _error(ApiError(why.status, why.message, code=why.reason))


def _same(given: str, secret: str | None) -> bool:
    return secret is not None and hmac.compare_digest(given.encode(errors="replace"), secret.encode())


def _error(error: ApiError) -> web.Response:
    return _json(error.body(), error.status)


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


# ---- inference


async def _chat(request: web.Request) -> web.StreamResponse:
    return await _answer(request, parse_chat)


async def _completions(request: web.Request) -> web.StreamResponse:
    return await _answer(request, parse_completion)


async def _answer(
    request: web.Request, parse: Callable[[dict[str, Any], Engine], Call]
) -> web.StreamResponse:
    body = await _body(request)
    engine = _engine(request, body.get("model"))
    call = await _parsed(request, parse, body, engine)
    answer = Answer(call, engine.tokenizer)
    if call.stream:
        return await stream_answer(request, engine, answer, request.app[_MAILBOX])
    return _json(answer.whole(await _generate(engine, call)))


async def _parsed(
    request: web.Request, parse: Callable[[dict[str, Any], Engine], T], body: dict[str, Any], engine: Engine
) -> T:
    """``parse(body, engine)`` in a thread: a chat template is a stranger's program, and what else the server
    does must not wait for it. Requests that came while others were read are read in one go, so that the
    engine gets them together and computes their prompts in one pass.
    """
    return await request.app[_PARSING][engine.name].do(partial(parse, body, engine))


async def _generate(engine: Engine, call: Call) -> list[list[Completion]]:
    """All prompts of a call; if one fails or the client goes, the others are cancelled."""
    sampling = replace(call.sampling, seed=call.seed)
    try:
        futures = [asyncio.wrap_future(engine.submit(Request(p, sampling, call.n))) for p in call.prompts]
    except PromptTooLong:
        raise
    except ValueError as error:
        raise ApiError(400, str(error)) from error
    try:
        return await asyncio.gather(*futures)
    finally:
        for future in futures:
            future.cancel()


async def _tokenize(request: web.Request) -> web.Response:
    body = await _body(request)
    engine = _engine(request, body.get("model"))
    ids = await _parsed(request, parse_tokenize, body, engine)
    return _json({"count": len(ids), "max_model_len": engine.max_len, "tokens": ids})


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        raw = await read(request, MAX_BODY)
        check_container_count(raw)
        body = msgspec.json.decode(raw)
        check_plain(body)
    except RequestRefused as error:
        raise ApiError(error.status, str(error), code=error.reason) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NotPlain) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return body


def _engine(request: web.Request, name: Any) -> Engine:
    """The engine of a policy; without a name the only one."""
    engines = request.app[_ENGINES]
    if name is None and len(engines) == 1:
        return next(iter(engines.values()))
    if not isinstance(name, str) or name not in engines:
        raise ApiError(
            404, f"no policy {name!r} here; there are {sorted(engines)}", "model", "model_not_found"
        )
    return engines[name]


# ---- state


async def _models(request: web.Request) -> web.Response:
    data = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "agl-local",
            "max_model_len": engine.max_len,
            "policy_version": engine.version,
        }
        for name, engine in request.app[_ENGINES].items()
    ]
    return _json({"object": "list", "data": data})


async def _health(request: web.Request) -> web.Response:
    closed = {n: s["closed"] for n, e in request.app[_ENGINES].items() if (s := e.status())["closed"]}
    return _json(
        {"status": "failed", "closed": closed} if closed else {"status": "ok"}, 503 if closed else 200
    )


async def _metrics(request: web.Request) -> web.Response:
    states = {name: engine.status() for name, engine in request.app[_ENGINES].items()}
    accept = request.headers.get("Accept", "")
    if "text/plain" not in accept and "openmetrics" not in accept:  # what Prometheus asks for
        return _json({"policies": states})
    body, kind = prometheus(states, accept)
    return web.Response(body=body, headers={"Content-Type": kind})


async def _version(request: web.Request) -> web.Response:
    engine = _engine(request, request.query.get("policy"))
    return _json({"policy": engine.name, "version": engine.version})


# ---- for the driver


async def _weights(request: web.Request) -> web.Response:
    engine = _engine(request, request.query.get("policy"))
    try:
        version = int(request.query["version"])
    except (KeyError, ValueError):
        raise ApiError(400, "the query needs version=<number>", "version") from None
    mode = _mode(request)
    try:
        handover = msgspec.convert(await _body(request), Handover)
        engine.make_room()
        tensors = await asyncio.to_thread(request.app[_MAPPED][engine.name].take, handover)
        done = await asyncio.to_thread(engine.submit_shared, tensors, version, mode)
        del tensors
        await asyncio.wrap_future(done)
    except (StateError, ValueError) as error:
        raise ApiError(400, str(error)) from error
    return _json({"policy": engine.name, "version": engine.version})


async def _pause(request: web.Request) -> web.Response:
    engine = _engine(request, request.query.get("policy"))
    await asyncio.wrap_future(engine.pause(_mode(request)))
    return _json(
        {"policy": engine.name, "paused": request.query.get("mode", "drain"), "version": engine.version}
    )


async def _resume(request: web.Request) -> web.Response:
    engine = _engine(request, request.query.get("policy"))
    engine.resume()
    return _json({"policy": engine.name, "paused": None, "version": engine.version})


def _mode(request: web.Request) -> PauseMode:
    try:
        return pause_mode(request.query.get("mode", "drain"))
    except ValueError as error:
        raise ApiError(400, str(error), "mode") from error
