"""A model server for core's own tests: scripted answers with tokens that a reader can check, and faults.

Users get the fuller server of ``agl_testing``. This one imports nothing of ours, so that core is tested
alone. A token is a byte of UTF-8, or the beginning or the end of a turn. A prompt that continues with an
answer verbatim begins with the ids of that answer's prompt and response.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from aiohttp import web

TURN, END = 256, 257
Body = dict[str, Any]


class Reply(msgspec.Struct, kw_only=True):
    """An answer: a text or an assistant message, and what goes wrong with it."""

    message: str | Mapping[str, Any] = ""
    status: int = 200
    headers: dict[str, str] = {}
    fault: Literal["half-json", "wrong-lengths", "no-ids", "duplicate-id"] | None = None


class Answer(msgspec.Struct):
    """One choice of an answer, as it was sampled."""

    message: dict[str, Any]
    text: str
    ids: list[int]
    logprobs: list[float]

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.message.get("tool_calls") else "stop"


class Exchange(msgspec.Struct, kw_only=True):
    """A request as the server received it, and its answer."""

    path: str
    headers: dict[str, str]
    body: Body
    status: int = 200
    response_id: str | None = None
    prompt_ids: list[int] = []
    answers: list[Answer] = []
    fault: str | None = None


Said = str | Mapping[str, Any] | Reply
Script = Callable[[Body], Said | Sequence[Said] | Awaitable[Said | Sequence[Said]]]


def tool_call(name: str, arguments: str, *, content: str | None = None) -> dict[str, Any]:
    """An assistant message that calls one tool."""
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a turn: its content, and its calls of tools with their arguments verbatim."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = "".join(f"<{function['name']}({function['arguments']})>" for function in functions)
    return (message.get("content") or "") + calls


def prompt_of(body: Mapping[str, Any]) -> list[int]:
    """The token ids of a request's prompt."""
    if (prompt := body.get("prompt")) is not None:
        return list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    tools = body.get("tools")
    turns = [f"system\n{json.dumps(tools, ensure_ascii=False)}"] if tools else []
    turns += [f"{message['role']}\n{text_of(message)}" for message in body["messages"]]
    return [token for turn in turns for token in (TURN, *turn.encode(), END)] + [TURN, *b"assistant\n"]


def answer_of(said: str | Mapping[str, Any]) -> Answer:
    """The choice for what is said. Logprobs depend on place and token, and are exact in 32 bits."""
    message = {
        "role": "assistant",
        "content": None,
        **({"content": said} if isinstance(said, str) else dict(said)),
    }
    text = text_of(message)
    ids = [*text.encode(), END]
    logprobs = [-(1 + (31 * place + token) % 64) / 64 for place, token in enumerate(ids)]
    return Answer(message, text, ids, logprobs)


class ModelServer:
    """Answers chat completions and completions by ``reply``, or ``ok``. ``log`` has all requests.

    ``ids``: whether token ids and logprobs are sent ``always``, or where they are ``asked`` for. A prompt of
    more than ``max_model_len`` tokens is refused. It listens in the running loop (``async with``) or in a
    thread of its own (``with``).
    """

    model = "scripted"

    def __init__(
        self,
        reply: Script | None = None,
        *,
        ids: Literal["asked", "always"] = "asked",
        max_model_len: int | None = None,
    ) -> None:
        self.reply: Script = reply or (lambda body: "ok")
        self.ids, self.max_model_len = ids, max_model_len
        self.log: list[Exchange] = []
        self.url = ""

    async def start(self) -> ModelServer:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._serve)
        app.router.add_post("/v1/completions", self._serve)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> ModelServer:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def __enter__(self) -> ModelServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self.start(), self._loop).result()

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ------------------------------------------------------------------------------------------ answering
    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        ids = prompt_of(await request.json())
        return web.json_response({"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.json()
        exchange = Exchange(path=request.path, headers=headers, body=body, prompt_ids=prompt_of(body))
        self.log.append(exchange)
        size, limit = len(exchange.prompt_ids), self.max_model_len
        if limit is not None and size > limit:
            message = f"This model's maximum context length is {limit} tokens; the prompt has {size}."
            return self._error(exchange, Reply(status=400, message=message))
        said = self.reply(exchange.body)
        said = await said if inspect.isawaitable(said) else said
        several = list(said) if isinstance(said, Sequence) and not isinstance(said, str) else [said]
        replies = [one if isinstance(one, Reply) else Reply(message=one) for one in several]
        if replies[0].status != 200:
            return self._error(exchange, replies[0])
        exchange.fault = replies[0].fault
        known = [one.response_id for one in self.log[:-1] if one.response_id]
        again = exchange.fault == "duplicate-id"
        exchange.response_id = known[-1] if again else f"response-{len(self.log)}"
        wanted = exchange.body.get("n") or 1
        exchange.answers = [answer_of(reply.message) for reply in (replies * wanted)[:wanted]]
        return await self._send(request, exchange)

    def _error(self, exchange: Exchange, reply: Reply) -> web.Response:
        exchange.status = reply.status
        error = {"message": str(reply.message) or "scripted error", "type": "scripted", "code": reply.status}
        return web.json_response({"error": error}, status=reply.status, headers=reply.headers)

    async def _send(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        parts = [json.dumps(part) for part in self.parts(exchange)]
        if exchange.fault == "half-json":
            parts = [*parts[: len(parts) // 2], parts[len(parts) // 2][:40]]
        if not exchange.body.get("stream"):
            return web.Response(text=parts[0], content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(f"data: {part}\n\n".encode())
        if exchange.fault != "half-json":
            await response.write(b"data: [DONE]\n\n")
        return response

    def parts(self, exchange: Exchange) -> list[dict[str, Any]]:
        """The JSON documents of an answer: one, or the chunks of a stream."""
        body, chat = exchange.body, "chat" in exchange.path
        streams = bool(body.get("stream"))
        kind = ("chat.completion" + ".chunk" * streams) if chat else "text_completion"
        frame = {"id": exchange.response_id, "object": kind, "created": 1, "model": body["model"]}
        shown = exchange.fault != "no-ids" and (self.ids == "always" or bool(body.get("return_token_ids")))
        prompt = {"prompt_token_ids": exchange.prompt_ids} if shown else {}
        sampled = sum(len(answer.ids) for answer in exchange.answers)
        read = len(exchange.prompt_ids)
        usage = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
        choices = [
            [
                {"index": index, **piece, **(_tokens(chat, ids, logprobs, exchange.fault) if shown else {})}
                for piece, ids, logprobs in _pieces(answer, chat, streams)
            ]
            for index, answer in enumerate(exchange.answers)
        ]
        if not chat:
            for pieces in choices:
                pieces[0] |= prompt
        first = prompt if chat else {}
        if not streams:
            return [{**frame, "choices": [one for (one,) in choices], "usage": usage, **first}]
        out = [{**frame, "choices": [piece]} for pieces in choices for piece in pieces]
        out[0] |= first
        if (body.get("stream_options") or {}).get("include_usage"):
            out.append({**frame, "choices": [], "usage": usage})
        return out


def _pieces(answer: Answer, chat: bool, streams: bool) -> list[tuple[dict[str, Any], list[int], list[float]]]:
    """The choice in one piece, or in those of a stream, each with its tokens. The last has the end token."""
    end = {"finish_reason": answer.finish_reason}
    if not streams:
        whole = {"message": answer.message} if chat else {"text": answer.text}
        return [({**whole, **end}, answer.ids, answer.logprobs)]
    deltas: list[tuple[dict[str, Any], str]] = []  # with their text
    if not chat:
        deltas = [({"text": answer.text}, answer.text)]
    else:
        deltas.append(({"delta": {"role": "assistant", "content": ""}}, ""))
        deltas += [({"delta": {"content": word}}, word) for word in _words(answer.message["content"] or "")]
        for index, call in enumerate(answer.message.get("tool_calls") or ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            head = {**call, "index": index, "function": {"name": name, "arguments": ""}}
            deltas.append(({"delta": {"tool_calls": [head]}}, f"<{name}("))
            for word in _words(arguments):
                piece = {"index": index, "function": {"arguments": word}}
                deltas.append(({"delta": {"tool_calls": [piece]}}, word))
            deltas[-1] = deltas[-1][0], deltas[-1][1] + ")>"
    out, place = [], 0
    for delta, text in deltas:
        stop = place + len(text.encode())
        out.append(({**delta, "finish_reason": None}, answer.ids[place:stop], answer.logprobs[place:stop]))
        place = stop
    last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    return [*out, ({**last, **end}, answer.ids[place:], answer.logprobs[place:])]


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*", text) if text.strip() else [text] if text else []


def _tokens(chat: bool, ids: list[int], logprobs: list[float], fault: str | None) -> dict[str, Any]:
    """The tokens of a choice. By the fault ``wrong-lengths`` the end token has no logprob."""
    if not ids:
        return {"logprobs": None}
    kept = logprobs[:-1] if fault == "wrong-lengths" and ids[-1] == END else logprobs
    if not chat:
        tokens = [str(token) for token in ids]
        more = {"tokens": tokens, "top_logprobs": None, "text_offset": [0] * len(tokens)}
        return {"token_ids": ids, "logprobs": {"token_logprobs": kept, **more}}
    pairs = zip(ids, kept, strict=False)
    content = [{"token": str(i), "bytes": None, "logprob": p, "top_logprobs": []} for i, p in pairs]
    return {"token_ids": ids, "logprobs": {"content": content}}
