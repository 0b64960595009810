"""An OpenAI-compatible model server with scripted answers and known tokens.

The prompt ids come from a chat template over the received messages *and tools*. So the ids change with
anything that a framework drops or serialises anew. The server logs every exchange, and a test compares the
log with the captured calls. The server answers chat completions and completions as an engine does, and
Responses and Messages through the gateway's translation. It listens on loopback, in the current event loop
(``async with``) or in a thread of its own (``with``).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Literal

import msgspec
from agl_gateway.apis.messages import MESSAGES
from agl_gateway.apis.responses import RESPONSES
from agl_gateway.apis.translated import TranslatedApi
from aiohttp import web

from agentlightning.gateway.errors import RequestRefused
from agentlightning.webserver.loopback import address, loopback
from agl_testing.replies import Answer, Reply, answer_of, chat_logprobs, deltas, text_logprobs
from agl_testing.template import encode, render

Body = dict[str, Any]
ScriptedReply = str | Mapping[str, Any] | Reply | Sequence[Any]
Script = Callable[[Body], ScriptedReply | Awaitable[ScriptedReply]]
"""``reply(body)`` returns a text, an assistant message, a :class:`Reply`, or a list of these for ``n``."""
SendIds = Literal["asked", "always", "never"]


class Exchange(msgspec.Struct, kw_only=True):
    """A request as the server received it, and its answer."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Body
    """The chat completions request. Requests of other API formats are translated into one."""
    status: int = 200
    response_id: str | None = None
    prompt_ids: list[int] = []
    answers: list[Answer] = []
    fault: str | None = None
    """The fault of the script's reply, or the error that the script raised."""
    time: float = 0.0

    @property
    def retry(self) -> int:
        """Return the SDK's retry count."""
        return int(self.headers.get("x-stainless-retry-count", "0"))


class ScriptedModelServer:
    """Serves the answers of ``reply`` as the model ``model``. The default reply is the text ``ok``.

    ``ids`` decides when the server sends token ids and logprobs: ``asked``, for requests that ask for them
    (as vLLM does), ``always`` or ``never``. A prompt of more than ``max_model_len`` tokens is refused with
    status 400.
    """

    def __init__(
        self,
        reply: Script | None = None,
        *,
        model: str = "scripted",
        ids: SendIds = "asked",
        max_model_len: int | None = None,
    ) -> None:
        self.reply: Script = reply or (lambda body: "ok")
        self.model, self.ids, self.max_model_len = model, ids, max_model_len
        self.log: list[Exchange] = []
        """Every exchange, in order of arrival."""
        self._numbers = count(1)
        self._last_id: str | None = None
        self._runner: web.AppRunner | None = None
        self._thread: tuple[threading.Thread, asyncio.AbstractEventLoop] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Return the base URL for an OpenAI client. Raise ``RuntimeError`` if the server is not running."""
        if not self._port:
            raise RuntimeError(
                "the scripted server is not running: use `with server:` or `await server.start()`"
            )
        return f"http://{address(loopback())}:{self._port}/v1"

    def answered(self) -> list[Exchange]:
        """Return the exchanges with status 200."""
        return [exchange for exchange in self.log if exchange.status == 200]

    # ------------------------------------------------------------------------------------------- life
    async def start(self) -> ScriptedModelServer:
        """Listen on a free port of loopback in the running event loop."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self._serve)
        app.router.add_post("/v1/completions", self._serve)
        app.router.add_post("/v1/responses", partial(self._serve_translated, RESPONSES))
        app.router.add_post("/v1/messages", partial(self._serve_translated, MESSAGES))
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, loopback(), 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Close all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner, self._port = None, 0

    async def __aenter__(self) -> ScriptedModelServer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    def __enter__(self) -> ScriptedModelServer:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="scripted-model-server", daemon=True)
        thread.start()
        self._thread = thread, loop
        asyncio.run_coroutine_threadsafe(self.start(), loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._thread is not None
        thread, loop = self._thread
        asyncio.run_coroutine_threadsafe(self.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()

    # --------------------------------------------------------------------------------------- answering
    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        """Answer with the number of tokens of a prompt, in vLLM's form."""
        ids = self._prompt_of(await request.json())
        return web.json_response({"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        exchange, failed = await self._answer(request, await request.json())
        return failed or await self._send(request, exchange)

    async def _serve_translated(self, api: TranslatedApi, request: web.Request) -> web.StreamResponse:
        """Answer a request of the Responses or Messages API with a translated chat answer."""
        asked = await request.json()
        try:
            chat = api.chat_body(asked)
        except RequestRefused as refused:
            return api.error_response(refused.status, refused.reason, str(refused))
        exchange, failed = await self._answer(request, chat)
        if failed is not None:
            if isinstance(failed.body, bytes):
                failed.body = api.error(failed.status, failed.body)
            return failed
        answer = api.answer(asked, ReplyBody(self, exchange).whole())
        if not asked.get("stream"):
            text = json.dumps(answer, ensure_ascii=False)
            return web.Response(text=text[: _half(exchange, len(text))], content_type="application/json")
        events = list(api.events(answer))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(events[: _half(exchange, len(events))]))
        return response

    async def _answer(self, request: web.Request, body: Body) -> tuple[Exchange, web.Response | None]:
        """Log a request. Return its exchange, and the response if it is an error."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        exchange = Exchange(
            path=request.path.removeprefix("/v1"), headers=headers, body=body, time=time.time()
        )
        self.log.append(exchange)
        exchange.prompt_ids = self._prompt(exchange)
        if self.max_model_len is not None and len(exchange.prompt_ids) > self.max_model_len:
            return exchange, self._error(exchange, Reply(status=400, message=self._too_long(exchange)))
        try:
            replies = await self._ask(body)
        except Exception as error:  # the client gets status 500, and the log keeps the script's error
            exchange.fault = repr(error)
            replies = [Reply(status=500, message=f"the script raised {error!r}")]
        first = replies[0]
        exchange.fault = first.fault or exchange.fault
        if first.delay:
            await asyncio.sleep(first.delay)
        if first.status != 200:
            return exchange, self._error(exchange, first)
        if first.fault == "disconnect":
            exchange.status = 0
            assert request.transport is not None
            request.transport.abort()
            return exchange, web.Response()
        number = next(self._numbers)
        fresh = f"{'chatcmpl' if _chats(exchange) else 'cmpl'}-srv-{number}"
        exchange.response_id = self._last_id if first.fault == "duplicate-id" and self._last_id else fresh
        self._last_id = exchange.response_id
        exchange.answers = [answer_of(reply) for reply in replies]
        return exchange, None

    async def _ask(self, body: Body) -> list[Reply]:
        reply = self.reply(body)
        if inspect.isawaitable(reply):
            reply = await reply
        many = list(reply) if isinstance(reply, Sequence) and not isinstance(reply, str) else [reply]
        replies = [one if isinstance(one, Reply) else Reply(message=one) for one in many]
        wanted = int(body.get("n") or 1)
        return (replies * wanted)[:wanted] if len(replies) < wanted else replies[:wanted]

    def _prompt(self, exchange: Exchange) -> list[int]:
        return self._prompt_of(exchange.body)

    def _prompt_of(self, body: Body) -> list[int]:
        if "messages" in body:
            return encode(render(body["messages"], body.get("tools")))
        prompt = body["prompt"]
        return encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _too_long(self, exchange: Exchange) -> str:
        asked = len(exchange.prompt_ids)
        return f"This model's maximum context length is {self.max_model_len} tokens; the prompt has {asked}."

    def _error(self, exchange: Exchange, reply: Reply) -> web.Response:
        exchange.status = reply.status
        error = {"message": str(reply.message) or "scripted error", "type": "scripted", "code": reply.status}
        return web.json_response({"error": error}, status=reply.status, headers=reply.headers)

    async def _send(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        raw = [json.dumps(part, ensure_ascii=False) for part in ReplyBody(self, exchange).parts()]
        if not exchange.body.get("stream"):
            text = raw[0][: len(raw[0]) // 2] if exchange.fault == "half-json" else raw[0]
            return web.Response(text=text, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for place, part in enumerate(raw):
            if exchange.fault == "half-json" and place == len(raw) // 2:
                await response.write(f"data: {part[: len(part) // 2]}\n\n".encode())
                return response
            await response.write(f"data: {part}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def _chats(exchange: Exchange) -> bool:
    return not exchange.path.startswith("/completions")


def _half(exchange: Exchange, size: int) -> int:
    """Return how much of an answer of ``size`` characters or events is sent."""
    return size // 2 if exchange.fault == "half-json" else size


class ReplyBody:
    """The answer of an exchange as JSON documents: one document, or the chunks of a stream."""

    def __init__(self, server: ScriptedModelServer, exchange: Exchange) -> None:
        self.exchange, self.body = exchange, exchange.body
        self.chat = _chats(exchange)
        shown = exchange.fault != "no-ids" and server.ids != "never"
        self.ids = shown and (server.ids == "always" or bool(self.body.get("return_token_ids")))
        asked = self.body.get("logprobs")
        self.logprobs = shown and (server.ids == "always" or (asked is not None and asked is not False))
        kind = ("chat.completion" if self.chat else "text_completion") + (
            ".chunk" if self.streams and self.chat else ""
        )
        self.frame = {
            "id": exchange.response_id,
            "object": kind,
            "created": int(exchange.time),
            "model": self.body.get("model", server.model),
        }

    @property
    def streams(self) -> bool:
        """Return whether the request asks for a stream."""
        return bool(self.body.get("stream"))

    def parts(self) -> list[dict[str, Any]]:
        """Return the JSON documents of the answer, in order."""
        answers = self.exchange.answers
        if not self.streams:
            return [self.whole()]
        out: list[dict[str, Any]] = []
        for index, answer in enumerate(answers):
            out += [{**self.frame, "choices": [choice]} for choice in self._chunks(index, answer)]
        if self.chat:
            out[0].update(self._prompt())
        if (self.body.get("stream_options") or {}).get("include_usage"):
            out.append({**self.frame, "choices": [], "usage": self._usage()})
        return out

    def whole(self) -> dict[str, Any]:
        """Return the answer as one JSON document."""
        choices = [self._whole(index, answer) for index, answer in enumerate(self.exchange.answers)]
        return {**self.frame, **self._prompt(), "choices": choices, "usage": self._usage()}

    def _prompt(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.exchange.prompt_ids} if self.ids and self.chat else {}

    def _usage(self) -> dict[str, int]:
        prompt, response = len(self.exchange.prompt_ids), sum(len(a.ids) for a in self.exchange.answers)
        return {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response}

    def _tokens(self, ids: list[int], logprobs: list[float]) -> dict[str, Any]:
        form = chat_logprobs if self.chat else text_logprobs
        return {
            "logprobs": form(ids, logprobs) if self.logprobs else None,
            **({"token_ids": ids} if self.ids else {}),
        }

    def _whole(self, index: int, answer: Answer) -> dict[str, Any]:
        logprobs = answer.logprobs[:-1] if self.exchange.fault == "wrong-lengths" else answer.logprobs
        reply = {"message": answer.message} if self.chat else {"text": answer.text}
        prompt = {"prompt_token_ids": self.exchange.prompt_ids} if self.ids and not self.chat else {}
        tokens = self._tokens(answer.ids, logprobs)
        return {"index": index, **reply, **tokens, **prompt, "finish_reason": answer.finish_reason}

    def _chunks(self, index: int, answer: Answer) -> list[dict[str, Any]]:
        pieces = deltas(answer) if self.chat else iter([({"text": answer.text}, len(answer.ids) - 1)])
        out: list[dict[str, Any]] = []
        place = 0
        for delta, tokens in pieces:
            reply: dict[str, Any] = {"delta": delta} if self.chat else delta
            piece = {"index": index, **reply, "finish_reason": None}
            out.append({**piece, **self._slice(answer, place, place + tokens)})
            place += tokens
        last: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        stop = len(answer.logprobs) - 1 if self.exchange.fault == "wrong-lengths" else None
        final = {"index": index, **last, "finish_reason": answer.finish_reason}
        out.append({**final, **self._slice(answer, place, None, stop)})
        if not self.chat and self.ids:
            out[0]["prompt_token_ids"] = self.exchange.prompt_ids
        return out

    def _slice(self, answer: Answer, start: int, end: int | None, stop: int | None = None) -> dict[str, Any]:
        """Return the tokens of one chunk. ``stop``: end of the logprobs, if not that of the ids."""
        ids, logprobs = answer.ids[start:end], answer.logprobs[start : end if stop is None else stop]
        return self._tokens(ids, logprobs) if ids else {"logprobs": None}
