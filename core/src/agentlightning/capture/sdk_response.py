"""Read token ids, logprobs and settings from an SDK's whole answers and streams.

SDKs keep fields that they do not know (``prompt_token_ids``, ``token_ids``), so the engine's tokens are read
from the objects that the user gets. Chat and completions carry them in each choice. Responses and Messages
have one choice, made of items or blocks, and carry them in the answer itself. Invariants: reading changes
nothing that the user sees; the events of a stream add up to the whole answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ResponseChoice:
    """One choice of an answer. ``None``: the engine did not send the field."""

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
        self.finish_reason = getattr(choice, "finish_reason", None) or self.finish_reason
        message = getattr(choice, "message", None) or getattr(choice, "delta", None)
        self.content += (
            getattr(message, "content", None) if message else getattr(choice, "text", None)
        ) or ""
        for position, part in enumerate(getattr(message, "tool_calls", None) or ()):
            self._add_tool_call(getattr(part, "index", position) or 0, part)

    def _add_tool_call(self, index: int, part: Any) -> None:
        call = self.tool_calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["id"] = getattr(part, "id", None) or call["id"]
        function = getattr(part, "function", None)
        call["name"] += getattr(function, "name", None) or ""
        call["arguments"] += getattr(function, "arguments", None) or ""

    def add_single(self, answer: Any) -> None:
        """Add a whole ``Response`` or ``Message``, or the state of one that begins or ends in a stream."""
        if (ids := getattr(answer, "token_ids", None)) is not None:
            self.ids = list(ids)
        if (logprobs := getattr(answer, "token_logprobs", None)) is not None:
            self.logprobs = list(logprobs)
        status = getattr(answer, "status", None)
        self.finish_reason = getattr(answer, "stop_reason", None) or (
            status if status not in (None, "in_progress", "queued") else self.finish_reason
        )
        for item in getattr(answer, "output", None) or getattr(answer, "content", None) or ():
            self._add_item(item)

    def _add_item(self, item: Any) -> None:
        kind, place = getattr(item, "type", None), len(self.tool_calls)
        if kind == "text":
            self.content += item.text
        elif kind == "message":
            self.content += "".join(getattr(part, "text", "") for part in item.content)
        elif kind == "tool_use":
            written = json.dumps(item.input, ensure_ascii=False)
            self.tool_calls[place] = {"id": item.id, "name": item.name, "arguments": written}
        elif kind == "function_call":
            self.tool_calls[place] = {"id": item.call_id, "name": item.name, "arguments": item.arguments}

    def add_event(self, event: Any) -> None:
        """Add an event between the first and the last of a message's stream."""
        delta: Any = getattr(event, "delta", None)
        block: Any = getattr(event, "content_block", None)
        if block is not None and getattr(block, "type", None) == "tool_use":
            self.tool_calls[event.index] = {"id": block.id, "name": block.name, "arguments": ""}
        self.finish_reason = getattr(delta, "stop_reason", None) or self.finish_reason
        if getattr(delta, "type", None) == "text_delta":
            self.content += delta.text
        elif getattr(delta, "type", None) == "input_json_delta" and event.index in self.tool_calls:
            self.tool_calls[event.index]["arguments"] += delta.partial_json

    def message(self) -> dict[str, Any]:
        """Return the answer in the form of ``gen_ai.output.messages``."""
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

    def add(self, piece: Any) -> None:
        """Add an answer (``ChatCompletion``, ``Completion``, ``Response``, ``Message``), a chunk or an
        event."""
        answer = getattr(piece, "response", None) or getattr(piece, "message", None) or piece
        self.response_id = self.response_id or getattr(answer, "id", None)
        self.model = self.model or getattr(answer, "model", None)
        if (prompt := getattr(answer, "prompt_token_ids", None)) is not None:
            self.prompt_ids = list(prompt)
        if (usage := getattr(answer, "usage", None)) is not None:
            self.prompt_tokens = _first(usage, "prompt_tokens", "input_tokens")
            self.completion_tokens = _first(usage, "completion_tokens", "output_tokens")
        for choice in getattr(answer, "choices", None) or ():
            self._choice(choice.index).add(choice)
        if _has_one_choice(answer):
            self._choice(0).add_single(answer)
        elif hasattr(piece, "type"):
            self._choice(0).add_event(piece)

    def _choice(self, index: int) -> ResponseChoice:
        return self.choices.setdefault(index, ResponseChoice())


def is_answer(value: Any) -> bool:
    """Return whether an SDK's result is a model's whole answer."""
    return hasattr(value, "choices") or _has_one_choice(value)


def _has_one_choice(answer: Any) -> bool:
    """Return whether it is a ``response`` or a ``message``, which have no list of choices."""
    return getattr(answer, "object", None) == "response" or getattr(answer, "type", None) == "message"


def _first(usage: Any, *names: str) -> Any:
    return next((v for name in names if (v := getattr(usage, name, None)) is not None), None)


def logprobs_of(choice: Any) -> list[float] | None:
    """Return the logprobs of a choice in chat form (``content``) or completions form (``token_logprobs``)."""
    logprobs = getattr(choice, "logprobs", None)
    if logprobs is None:
        return None
    if (content := getattr(logprobs, "content", None)) is not None:
        return [token.logprob for token in content]
    tokens = getattr(logprobs, "token_logprobs", None)
    return None if tokens is None else list(tokens)
