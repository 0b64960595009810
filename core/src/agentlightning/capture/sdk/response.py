"""Ids, logprobs and settings, read from an SDK's whole answers and streams.

SDKs keep fields they do not know (``prompt_token_ids``, ``token_ids``), so the engine's own tokens are read
from the very objects the user gets: in chat and completions by choice, in Responses and Messages, which have
one, on top of the answer or of the event that holds it. Invariant: reading changes nothing that the user
sees.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentlightning.capture.sdk.response_items import add_event, add_single, has_one_choice, response_in

OnEnd = Callable[[BaseException | None, bool], None]
"""Called once when a stream ends: with the error or ``None``, and whether it was read to its end."""


@dataclass(slots=True)
class ResponseChoice:
    """One choice of an answer. ``None``: the engine did not send it."""

    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    content: str = ""
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, choice: Any) -> None:
        """Add a whole choice, or the choice of a chunk."""
        if (prompt := getattr(choice, "prompt_token_ids", None)) is not None:
            self.prompt_ids = list(prompt)
        if (ids := getattr(choice, "token_ids", None)) is not None:
            self.ids = (self.ids or []) + list(ids)
        if (found := logprobs_of(choice)) is not None:
            self.logprobs = (self.logprobs or []) + found
        self.finish_reason = choice.finish_reason or self.finish_reason
        message = getattr(choice, "message", None) or getattr(choice, "delta", None)
        self.content += (
            getattr(message, "content", None) if message else getattr(choice, "text", None)
        ) or ""
        for position, part in enumerate(getattr(message, "tool_calls", None) or ()):
            self._add_tool_call(getattr(part, "index", position) or 0, part)

    def _add_tool_call(self, index: int, part: Any) -> None:
        call = self.tool_calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["id"] = part.id or call["id"]
        function = getattr(part, "function", None)
        call["name"] += getattr(function, "name", None) or ""
        call["arguments"] += getattr(function, "arguments", None) or ""

    def message(self) -> dict[str, Any]:
        """The answer as ``gen_ai.output.messages`` has it."""
        parts: list[dict[str, Any]] = [{"type": "text", "content": self.content}] if self.content else []
        parts += [{"type": "tool_call", **call} for _, call in sorted(self.tool_calls.items())]
        return {"role": "assistant", "parts": parts, "finish_reason": self.finish_reason}


@dataclass(slots=True)
class ResponseReader:
    """One answer, read whole or added up from chunks."""

    response_id: str | None = None
    model: str | None = None
    prompt_ids: list[int] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    choices: dict[int, ResponseChoice] = field(default_factory=dict)

    def add(self, answer: Any) -> None:
        """Add an answer (``ChatCompletion``, ``Completion``, ``Response``, ``Message``) or a piece of one."""
        piece, answer = answer, response_in(answer)
        self.response_id = self.response_id or getattr(answer, "id", None)
        self.model = self.model or getattr(answer, "model", None)
        if (prompt := getattr(answer, "prompt_token_ids", None)) is not None:
            self.prompt_ids = list(prompt)
        if (usage := getattr(answer, "usage", None)) is not None:
            self.prompt_tokens = _first(usage, "prompt_tokens", "input_tokens")
            self.completion_tokens = _first(usage, "completion_tokens", "output_tokens")
        for choice in getattr(answer, "choices", None) or ():
            self.choices.setdefault(choice.index, ResponseChoice()).add(choice)
        if has_one_choice(answer):
            add_single(self.choices.setdefault(0, ResponseChoice()), answer)
        elif hasattr(piece, "type"):
            add_event(self.choices.setdefault(0, ResponseChoice()), piece)


def is_answer(value: Any) -> bool:
    """Whether an SDK's result is a model's answer, read whole."""
    return hasattr(value, "choices") or has_one_choice(value)


def _first(usage: Any, *names: str) -> Any:
    return next((v for name in names if (v := getattr(usage, name, None)) is not None), None)


def logprobs_of(choice: Any) -> list[float] | None:
    """Logprobs of a choice in chat form (``content``) or completions form (``token_logprobs``)."""
    logprobs = getattr(choice, "logprobs", None)
    if logprobs is None:
        return None
    if (content := getattr(logprobs, "content", None)) is not None:
        return [token.logprob for token in content]
    tokens = getattr(logprobs, "token_logprobs", None)
    return None if tokens is None else list(tokens)


class _Tee:
    """What both tees share: ``on_end`` is called once, at the end, on an error, or when the stream is given
    up.
    """

    def __init__(self, inner: Any, take: Callable[[Any], None], on_end: OnEnd) -> None:
        self._inner, self._take, self._on_end = inner, take, on_end
        self._ended = False

    def _end(self, error: BaseException | None, complete: bool) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(error, complete)

    def __del__(self) -> None:
        self._end(None, False)


class StreamTee(_Tee, Iterator[Any]):
    """A stream's iterator that also passes each item to ``take``."""

    def __next__(self) -> Any:
        try:
            item = next(self._inner)
        except StopIteration:
            self._end(None, True)
            raise
        except BaseException as error:
            self._end(error, False)
            raise
        self._take(item)
        return item


class AsyncStreamTee(_Tee, AsyncIterator[Any]):
    """:class:`StreamTee` for an asynchronous stream."""

    async def __anext__(self) -> Any:
        try:
            item = await anext(self._inner)
        except StopAsyncIteration:
            self._end(None, True)
            raise
        except BaseException as error:
            self._end(error, False)
            raise
        self._take(item)
        return item
