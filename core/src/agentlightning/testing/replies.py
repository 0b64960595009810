"""A script's answers and their exact form on the wire: whole or streamed, with ids and logprobs.

Logprobs are a function of position and token, and exactly representable in float32, so that a test can ask
for equality. Invariant: the ids of a streamed answer, put together, are those of the whole answer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentlightning.testing.template import END, body, decode, encode

Fault = Literal["half-json", "wrong-lengths", "no-ids", "duplicate-id", "disconnect"]


class Reply(msgspec.Struct, kw_only=True):
    """An answer. ``message``: a text, or an assistant message with ``tool_calls``."""

    message: str | Mapping[str, Any] = ""
    finish_reason: str | None = None
    """Default: ``tool_calls`` where there are some, else ``stop``."""
    status: int = 200
    """Another status is answered with an OpenAI-style error whose text is ``message``."""
    headers: dict[str, str] = {}
    delay: float = 0.0
    """Seconds before the answer begins."""
    fault: Fault | None = None
    """``half-json``: the body ends half-way. ``wrong-lengths``: one logprob is missing. ``no-ids``: ids are
    left out although they were asked for. ``duplicate-id``: the response id of the answer before.
    ``disconnect``: no answer."""


def tool_call(
    name: str, arguments: str | Mapping[str, Any], call_id: str = "call_0", content: str | None = None
) -> dict[str, Any]:
    """An assistant message that calls one tool; ``arguments`` as text go out verbatim."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


class Answer(msgspec.Struct, kw_only=True):
    """One choice as it is sent and logged."""

    message: dict[str, Any]
    text: str
    finish_reason: str
    ids: list[int]
    logprobs: list[float]


def answer_of(reply: Reply) -> Answer:
    """The choice that a reply stands for, with its tokens: the turn's body and the end mark."""
    fields = {"content": reply.message} if isinstance(reply.message, str) else reply.message
    message: dict[str, Any] = {"role": "assistant", "content": None, **fields}
    text = body(message)
    ids = [*encode(text), END]
    finish = reply.finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    return Answer(message=message, text=text, finish_reason=finish, ids=ids, logprobs=logprobs_of(ids))


def logprobs_of(ids: Sequence[int]) -> list[float]:
    """One negative number a token: a multiple of 1/1024 that depends on token and position."""
    return [-(1 + zlib.crc32(b"%d:%d" % (place, token)) % 4096) / 1024 for place, token in enumerate(ids)]


def chat_logprobs(ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """The ``logprobs`` of a chat choice."""
    entries = zip(ids, logprobs, strict=False)  # a fault may have left one out
    return {
        "content": [
            {"token": decode([i]), "bytes": None, "logprob": p, "top_logprobs": []} for i, p in entries
        ]
    }


def text_logprobs(ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """The ``logprobs`` of a completions choice."""
    tokens = [decode([i]) for i in ids]
    return {
        "tokens": tokens,
        "token_logprobs": list(logprobs),
        "top_logprobs": None,
        "text_offset": [0] * len(tokens),
    }


def deltas(answer: Answer, size: int = 12) -> Iterator[tuple[dict[str, Any], int]]:
    """Chat deltas of an answer, each with the number of its tokens; the last, without text, has the end
    mark."""
    yield {"role": "assistant", "content": ""}, 0
    for piece in _pieces(answer.message.get("content") or "", size):
        yield {"content": piece}, len(encode(piece))
    for index, call in enumerate(answer.message.get("tool_calls") or ()):
        function = call["function"]
        frame = len(encode(body({"content": None, "tool_calls": [call]}))) - len(
            encode(function["arguments"])
        )
        head = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield (
            {"tool_calls": [head]},
            frame,
        )  # the marks around the arguments count with the head: order is kept by id
        for piece in _pieces(function["arguments"], size):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, len(encode(piece))


def _pieces(text: str, size: int) -> Iterator[str]:
    """Whole marks, and up to ``size`` characters between them."""
    place = 0
    while place < len(text):
        cut = place + size
        if (mark := text.find("<", place, cut)) > place:
            cut = mark
        elif mark == place:
            close = text.find(">", place)
            cut = close + 1 if close > 0 else place + 1
        yield text[place:cut]
        place = cut
