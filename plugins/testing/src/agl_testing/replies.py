"""Scripted answers, and the JSON that a server sends for them: whole or streamed, with ids and logprobs.

A logprob is a function of position and token and has an exact float32 value, so that tests can compare for
equality. Invariant: the chunks of a streamed answer have the ids of the whole answer, in order.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agl_testing.template import END, body, decode, encode

Fault = Literal["half-json", "wrong-lengths", "no-ids", "duplicate-id", "disconnect"]
PIECE = 12
"""Characters of a streamed delta, at most."""


class Reply(msgspec.Struct, kw_only=True):
    """An answer. ``message`` is a text or an assistant message with ``tool_calls``."""

    message: str | Mapping[str, Any] = ""
    finish_reason: str | None = None
    """Default: ``tool_calls`` for a message with tool calls, else ``stop``."""
    status: int = 200
    """HTTP status. Any status but 200 sends an error in OpenAI's form with the text ``message``."""
    headers: dict[str, str] = {}
    delay: float = 0.0
    """Seconds before the answer begins."""
    fault: Fault | None = None
    """``half-json``: send half of the body. ``wrong-lengths``: leave one logprob out. ``no-ids``: leave out
    the ids that the request asks for. ``duplicate-id``: use the previous response id. ``disconnect``: close
    the connection without an answer."""


def tool_call(
    name: str, arguments: str | Mapping[str, Any], call_id: str = "call_0", content: str | None = None
) -> dict[str, Any]:
    """Return an assistant message that calls one tool. ``arguments`` given as text are sent verbatim."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


class Answer(msgspec.Struct, kw_only=True):
    """One choice of an answer, as the server sends and logs it."""

    message: dict[str, Any]
    text: str
    finish_reason: str
    ids: list[int]
    logprobs: list[float]


def answer_of(reply: Reply) -> Answer:
    """Return the choice for a reply. Its tokens are those of the turn's body, and the end token."""
    fields = {"content": reply.message} if isinstance(reply.message, str) else reply.message
    message: dict[str, Any] = {"role": "assistant", "content": None, **fields}
    text = body(message)
    ids = [*encode(text), END]
    finish = reply.finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    return Answer(message=message, text=text, finish_reason=finish, ids=ids, logprobs=logprobs_of(ids))


def logprobs_of(ids: Sequence[int]) -> list[float]:
    """Return a negative number for each token: a multiple of 1/1024 that depends on token and position."""
    return [-(1 + zlib.crc32(b"%d:%d" % (place, token)) % 4096) / 1024 for place, token in enumerate(ids)]


def chat_logprobs(ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat choice."""
    entries = zip(ids, logprobs, strict=False)  # the fault ``wrong-lengths`` leaves one out
    return {
        "content": [
            {"token": decode([i]), "bytes": None, "logprob": p, "top_logprobs": []} for i, p in entries
        ]
    }


def text_logprobs(ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """Return the ``logprobs`` of a completions choice."""
    tokens = [decode([i]) for i in ids]
    return {
        "tokens": tokens,
        "token_logprobs": list(logprobs),
        "top_logprobs": None,
        "text_offset": [0] * len(tokens),
    }


def deltas(answer: Answer) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the chat deltas of an answer, each with its number of tokens. The caller sends the end token."""
    yield {"role": "assistant", "content": ""}, 0
    for piece in _pieces(answer.message.get("content") or ""):
        yield {"content": piece}, len(encode(piece))
    for index, call in enumerate(answer.message.get("tool_calls") or ()):
        function = call["function"]
        frame = len(encode(body({"content": None, "tool_calls": [call]}))) - len(
            encode(function["arguments"])
        )
        head = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [head]}, frame  # the head carries the tokens of the marks around the arguments
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, len(encode(piece))


def _pieces(text: str) -> Iterator[str]:
    """Yield special tokens whole, and pieces of up to :data:`PIECE` characters of the text between them."""
    place = 0
    while place < len(text):
        cut = place + PIECE
        if (mark := text.find("<", place, cut)) > place:
            cut = mark
        elif mark == place:
            close = text.find(">", place)
            cut = close + 1 if close > 0 else place + 1
        yield text[place:cut]
        place = cut
