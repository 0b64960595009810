"""The routes of the Tinker API, under ``/api/v1``, over one base policy.

Calls that train are promises: the answer to the POST is a number, and ``retrieve_future`` waits for the
result. A client that sends a call again gets the same number. On loopback any key is welcome and what a web
page may have sent is refused; with a token (``AGL_TINKER_TOKEN``, best one that begins with ``tml-``) every
request bears it as ``X-API-Key``. Invariant: a request that cannot be carried out is refused with a sentence,
never half carried out.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from agentlightning.types.base import RequestRefused
from agentlightning.webserver import app_runner, listen
from agentlightning.webserver.body import read
from agentlightning.webserver.guard import guard
from agentlightning.webserver.loopback import cannot_listen, check_interface, check_token
from agl_local.policy.folder import Policy
from agl_tinker.server.adapter import LoraConfig
from agl_tinker.server.models import (
    Answer,
    Model,
    Models,
    answer,
    checked_name,
    failed,
    read_state,
    saved_at,
    write,
)
from agl_tinker.server.samplers import Sample, Samplers
from agl_tinker.server.wire import PROTOBUF, read_training_call, write_sample

TOKEN_VARIABLE = "AGL_TINKER_TOKEN"
MAX_BODY = 64 * 2**20
PATIENCE = 20.0
"""Seconds for which ``retrieve_future`` waits; the client gives up at 45 and asks again after a 408."""
KEPT = 4096
"""Answers to samples that are kept for clients that ask again."""
SILENCE = 600.0
"""Seconds without a heartbeat after which a session's models leave the memory."""
_NO_UNEMBED = "this server trains attention and MLP; it has no adapter of the output layer (train_unembed)"
_log = logging.getLogger(__name__)
T = TypeVar("T")


class TinkerServer:
    """Serves ``base`` under ``name``. What clients make is kept in ``root``, and is there again after a
    restart. ``samplers``: engines in memory at a time; ``slots``: conversations of each.
    """

    def __init__(
        self,
        base: Policy,
        name: str,
        root: Path,
        *,
        token: str | None = None,
        samplers: int = 4,
        slots: int = 16,
        max_len: int | None = None,
    ) -> None:
        base.model.requires_grad_(False)
        self.base, self.name, self.root = base, name, root
        self._token = check_token(token, TOKEN_VARIABLE)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tinker-server")
        self.models = Models(root, base, self._worker)
        self.samplers = Samplers(root, base, self._worker, most=samplers, slots=slots, max_len=max_len)
        self._heard: dict[str, float] = {}
        self._samples: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve; returns the address, a client's ``base_url``."""
        check_interface("the Tinker API", host, guarded=self._token is not None, variable=TOKEN_VARIABLE)
        self._runner = app_runner(self.app(), handler_cancellation=False)
        try:
            address = await listen(self._runner, host, port)
        except OSError as error:
            await self._runner.cleanup()
            raise cannot_listen("the Tinker API", host, port, error, "--port") from error
        self._sweeper = asyncio.ensure_future(self._sweep())
        return address

    async def close(self) -> None:
        """Stop serving. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert self._sweeper is not None
        self._sweeper.cancel()
        await runner.cleanup()
        for task in self._samples.values():
            task.cancel()
        await asyncio.to_thread(self.samplers.close)
        await asyncio.to_thread(self._worker.shutdown)

    def app(self) -> web.Application:
        """The application."""
        no_pages = [] if self._token is not None else [guard(_refused_page)]
        app = web.Application(middlewares=[_errors, self._doors, *no_pages])
        post, get = app.router.add_post, app.router.add_get
        for path, handler in {
            "client/config": self._client_config,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "sessions/{id}/finish": self._finish,
            "telemetry": self._telemetry,
            "create_model": self._create_model,
            "get_info": self._get_info,
            "unload_model": self._unload_model,
            "forward_backward": self._forward_backward,
            "optim_step": self._in_order,
            "save_weights": self._in_order,
            "save_weights_for_sampler": self._in_order,
            "save_weights_external": self._in_order,
            "load_weights": self._load_weights,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._asample,
            "retrieve_future": self._retrieve_future,
            "weights_info": self._weights_info,
        }.items():
            post(f"/api/v1/{path}", handler)
        get("/api/v1/healthz", self._healthz)
        get("/api/v1/get_server_capabilities", self._capabilities)
        get("/api/v1/samplers/{id}", self._get_sampler)
        get("/api/v1/training_runs/{id}", self._training_run)
        get("/api/v1/training_runs/{id}/checkpoints", self._checkpoints)
        external = "/api/v1/training_runs/{id}/checkpoints/external_weights/{name}"
        get(f"{external}/external_weights_urls", self._external_urls)
        get(f"{external}/files/{{file}}", self._external_file)
        return app

    # ----------------------------------------------------------------------------------- clients and sessions
    @web.middleware
    async def _doors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("X-API-Key") or request.headers.get("Authorization", "").removeprefix(
            "Bearer "
        )
        if self._token is not None and not hmac.compare_digest(given.encode(), self._token.encode()):
            raise RequestRefused(
                401, "key", f"the API key is missing or wrong: it is the server's {TOKEN_VARIABLE}"
            )
        return await handler(request)

    async def _client_config(self, request: web.Request) -> web.Response:
        return _json({})

    async def _telemetry(self, request: web.Request) -> web.Response:
        return _json({"status": "accepted"})

    async def _healthz(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _capabilities(self, request: web.Request) -> web.Response:
        model = {
            "model_name": self.name,
            "max_context_length": self.samplers.max_len,
            "trainable": True,
            "sampleable": True,
        }
        return _json({"supported_models": [model]})

    async def _create_session(self, request: web.Request) -> web.Response:
        session = f"s-{secrets.token_hex(8)}"
        write(self.root / "sessions" / session, b"")
        self._heard[session] = time.monotonic()
        return _json({"session_id": session, "info_message": _NO_UNEMBED, "type": "create_session"})

    async def _heartbeat(self, request: web.Request) -> web.Response:
        session = str((await _body(request)).get("session_id"))
        self._session(session)
        return _json({"type": "session_heartbeat"})

    async def _finish(self, request: web.Request) -> web.Response:
        session = request.match_info["id"]
        self._session(session)
        self._forget(session)
        return _json({})

    def _session(self, session: str) -> str:
        """``session``, which was heard now. Raises RequestRefused for one that is none."""
        if not session.startswith("s-") or "/" in session or not (self.root / "sessions" / session).exists():
            raise RequestRefused(404, "session", f"there is no session {session!r}")
        self._heard[session] = time.monotonic()
        return session

    def _forget(self, session: str) -> None:
        """Take a session's models from memory; one that is busy is taken later, when it is silent."""
        if self.models.unload(session):
            self._heard.pop(session, None)

    async def _sweep(self) -> None:
        """Take the models of silent sessions from memory."""
        while True:
            await asyncio.sleep(SILENCE / 10)
            for session in [s for s, at in self._heard.items() if time.monotonic() - at > SILENCE]:
                self._forget(session)

    # ---------------------------------------------------------------------------------------------- training
    async def _create_model(self, request: web.Request) -> web.Response:
        body = await _body(request)
        session = self._session(str(body.get("session_id")))
        self._check_base(body.get("base_model"))
        kind = (body.get("optimizer_config") or {}).get("type", "adamw")
        if kind != "adamw":
            raise RequestRefused(400, "optimizer", f"the optimizer {kind!r} is not here; there is 'adamw'")
        config = _converted(body.get("lora_config") or {}, LoraConfig)
        config.lora()
        return self._making(self.models.create(session, _number(body, "model_seq_id"), config))

    async def _load_weights(self, request: web.Request) -> web.Response:
        body = await _body(request)
        saved_at(self.root, str(body.get("path")))
        if body.get("session_id") is None:
            return await self._in_order(request, body)
        session, number = self._session(str(body["session_id"])), _number(body, "model_seq_id")
        optimizer = bool(body.get("optimizer"))
        return self._making(self.models.create(session, number, LoraConfig(), body["path"], optimizer))

    def _check_base(self, name: object) -> None:
        if name != self.name:
            raise RequestRefused(
                400, "base-model", f"the base model {name!r} is not here; there is {self.name!r}"
            )

    async def _model(self, model_id: object) -> Model:
        """The model, whose session was heard now. Raises RequestRefused for one that is not."""
        model = await self.models.get(str(model_id))
        self._heard[model.id.partition(":")[0]] = time.monotonic()
        return model

    def _making(self, model_id: str) -> web.Response:
        """The number under which a model that is made now is asked for."""
        return _json({"request_id": f"make/{model_id}", "model_id": model_id})

    async def _get_info(self, request: web.Request) -> web.Response:
        model = await self._model((await _body(request)).get("model_id"))
        data = {
            "arch": self.base.config.to_hf().get("model_type"),
            "model_name": self.name,
            "tokenizer_id": str(self.base.path),
        }
        rank = model.adapter.config.rank
        return _json(
            {"type": "get_info", "model_id": model.id, "model_data": data, "is_lora": True, "lora_rank": rank,
             "model_name": self.name}
        )  # fmt: skip

    async def _unload_model(self, request: web.Request) -> web.Response:
        model_id = str((await _body(request)).get("model_id"))
        await self.models.get(model_id)
        self.models.unload(model_id.partition(":")[0])
        return _json({"request_id": f"make/{model_id}", "model_id": model_id})

    async def _forward_backward(self, request: web.Request) -> web.Response:
        if request.content_type != PROTOBUF:
            raise RequestRefused(415, "json", "send protobuf: this server is for clients from tinker 0.25 on")
        raw = await read(request, MAX_BODY)
        call = await asyncio.to_thread(read_training_call, raw)
        return await self._taken(call.model_id, call.seq_id, "forward_backward", raw)

    async def _in_order(self, request: web.Request, body: dict[str, Any] | None = None) -> web.Response:
        body = await _body(request) if body is None else body
        kind = request.path.rpartition("/")[2]
        return await self._taken(
            str(body.get("model_id")), _number(body, "seq_id"), kind, msgspec.json.encode(body)
        )

    async def _taken(self, model_id: str, seq: int, kind: str, body: bytes) -> web.Response:
        model = await self._model(model_id)
        model.submit(seq, kind, body)
        return _json({"request_id": f"call/{model_id}/{seq}", "model_id": model_id})

    # ---------------------------------------------------------------------------------------------- sampling
    async def _create_sampling_session(self, request: web.Request) -> web.Response:
        body = await _body(request)
        session = self._session(str(body.get("session_id")))
        path = body.get("model_path") or ""
        if path:
            saved_at(self.root, path)
        else:
            self._check_base(body.get("base_model"))
        made = f"{session}:sample:{_number(body, 'sampling_session_seq_id')}"
        write(self.root / "samplers" / made, path.encode())
        return _json({"type": "create_sampling_session", "sampling_session_id": made})

    def _path_of(self, sampler: object) -> str:
        """The weights of a sampling session; empty: the base. Raises RequestRefused."""
        file = self.root / "samplers" / str(sampler)
        if "/" in str(sampler) or not file.is_file():
            raise RequestRefused(404, "sampler", f"there is no sampling session {sampler!r}")
        return file.read_text(encoding="utf-8")

    async def _get_sampler(self, request: web.Request) -> web.Response:
        sampler = request.match_info["id"]
        path = self._path_of(sampler)
        return _json({"sampler_id": sampler, "base_model": self.name, "model_path": path or None})

    async def _asample(self, request: web.Request) -> web.Response:
        asked = _converted(await _body(request), Sample)
        asked.check()
        made = secrets.token_hex(8)
        if asked.sampling_session_id is not None:
            path = self._path_of(asked.sampling_session_id)
            if asked.seq_id is not None:  # the same number is the same question, sent again
                made = f"{asked.sampling_session_id}/{asked.seq_id}"
        else:
            path = asked.model_path or ""
            if not path:
                self._check_base(asked.base_model)
        if made not in self._samples:
            self._samples[made] = asyncio.ensure_future(self._sampled(path, asked))
            while len(self._samples) > KEPT:
                self._samples.popitem(last=False)
        ids = [f"{made}/{i}" for i in range(asked.num_samples)]
        return _json({"request_id": f"sample/{made}", "sample_sequence_ids": ids})

    async def _sampled(self, path: str, asked: Sample) -> Answer:
        try:
            completions, known = await self.samplers.answer(path, asked)
        except Exception as error:
            if not isinstance(error, RequestRefused):
                _log.exception("a sample failed")
            return failed(error)
        return Answer(write_sample(completions, known, asked.topk_sample_logprobs), proto=True)

    # ----------------------------------------------------------------------------------------------- results
    async def _retrieve_future(self, request: web.Request) -> web.Response:
        asked = str((await _body(request)).get("request_id"))
        kind, _, rest = asked.partition("/")
        found: Answer | None
        if kind == "call":
            model_id, _, seq = rest.rpartition("/")
            model = await self._model(model_id)
            found = await model.result(int(seq) if seq.isdecimal() else 0, PATIENCE)
        elif kind == "make":
            found = await self._made(rest)
        else:
            task = self._samples.get(rest)
            if task is None:  # 410: the client asks its question again
                raise RequestRefused(410, "future", f"there is no promise {asked!r}")
            done, _ = await asyncio.wait({task}, timeout=PATIENCE)
            found = task.result() if done else None
        if found is None:
            return _json({"type": "try_again", "request_id": asked, "queue_state": "active"}, 408)
        return web.Response(body=found.body, content_type=PROTOBUF if found.proto else "application/json")

    async def _made(self, model_id: str) -> Answer | None:
        try:
            model = await asyncio.wait_for(self.models.get(model_id), PATIENCE)
        except TimeoutError:
            return None
        except RequestRefused as error:
            return failed(error)
        return answer(model_id=model.id)

    # ------------------------------------------------------------------------------------------------ weights
    async def _training_run(self, request: web.Request) -> web.Response:
        model = await self._model(request.match_info["id"])
        changed = (model.folder / "model.pt").stat().st_mtime
        return _json(
            {"training_run_id": model.id, "base_model": self.name, "model_owner": "local", "is_lora": True,
             "lora_rank": model.adapter.config.rank, "last_request_time": _time(changed)}
        )  # fmt: skip

    async def _checkpoints(self, request: web.Request) -> web.Response:
        model = await self._model(request.match_info["id"])
        found = [
            {"checkpoint_id": f"{kind}/{file.stem}", "checkpoint_type": made,
             "tinker_path": f"tinker://{model.id}/{kind}/{file.stem}",
             "time": _time(file.stat().st_mtime), "size_bytes": file.stat().st_size}
            for kind, made in (("weights", "training"), ("sampler_weights", "sampler"))
            for file in sorted((model.folder / kind).glob("*.pt"))
        ]  # fmt: skip
        return _json({"checkpoints": found})

    async def _weights_info(self, request: web.Request) -> web.Response:
        path = str((await _body(request)).get("tinker_path"))
        config = msgspec.json.decode(
            (await asyncio.to_thread(read_state, saved_at(self.root, path)))["config"], type=LoraConfig
        )
        trained = {"train_attn": config.train_attn, "train_mlp": config.train_mlp, "train_unembed": False}
        return _json({"base_model": self.name, "is_lora": True, "lora_rank": config.rank, **trained})

    async def _external_urls(self, request: web.Request) -> web.Response:
        folder = await self._external(request)
        start = f"{request.url.origin()}{request.path.removesuffix('external_weights_urls')}files"
        urls = {file.name: f"{start}/{file.name}" for file in sorted(folder.iterdir())}
        return _json({"urls": urls, "expires": _time(time.time() + 3600)})

    async def _external_file(self, request: web.Request) -> web.StreamResponse:
        """A file of saved weights."""
        path = await self._external(request) / request.match_info["file"]
        if not path.is_file():
            raise RequestRefused(404, "file", f"there is no file {path.name!r}")
        return web.FileResponse(path)

    async def _external(self, request: web.Request) -> Path:
        found = request.match_info
        model = await self._model(found["id"])
        folder = model.folder / "external_weights" / checked_name(found["name"])
        if not folder.is_dir():
            raise RequestRefused(404, "weights", f"there are no external weights {found['name']!r}")
        return folder


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _converted(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RequestRefused(400, "body", f"the body does not fit this call: {error}") from None


def _number(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value < 10**9:
        raise RequestRefused(400, name, f"{name} must be a number from 0 on, got {value!r}")
    return value


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(await read(request, MAX_BODY) or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(400, "json", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestRefused(400, "json", "the body must be a JSON object")
    return body


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRefused as refused:
        return _json({"detail": refused.message, "error": refused.message}, refused.status)
    except web.HTTPException as error:
        return _json({"detail": f"{request.method} {request.path}: {error.reason}"}, error.status)


async def _refused_page(_: web.Request, why: RequestRefused) -> web.Response:
    return _json({"detail": why.message}, why.status)
