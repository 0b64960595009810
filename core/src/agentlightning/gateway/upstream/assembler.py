"""Put an answer together from the chunks of an engine's stream.

Invariant: the assembled answer has the ids and logprobs of every chunk, in order.
"""

from __future__ import annotations

from typing import Any

from agentlightning.gateway.errors import BadAnswer
from agentlightning.gateway.upstream.answer import AnswerChunk, EngineAnswer, EngineChoice, Logprobs


class _PartialChoice:
    """One choice while it arrives."""

    __slots__ = ("finish", "ids", "index", "logprobs", "message", "prompt", "text", "tools")

    def __init__(self, index: int) -> None:
        self.index = index
        self.ids: list[int] | None = None
        self.prompt: list[int] | None = None
        self.logprobs: list[float | None] | None = None
        self.text: list[str] = []
        self.message: dict[str, Any] = {}
        self.tools: dict[int, dict[str, Any]] = {}
        self.finish: str | None = None

    def add(self, piece: EngineChoice) -> None:
        if piece.token_ids is not None:
            if self.ids is None:
                self.ids = []
            self.ids.extend(piece.token_ids)
        if piece.prompt_token_ids is not None and self.prompt is None:
            self.prompt = piece.prompt_token_ids
        if piece.logprobs is not None:
            self._add_logprobs(piece.logprobs)
        if piece.text:
            self.text.append(piece.text)
        if piece.delta:
            self._add_delta(piece.delta)
        if piece.finish_reason is not None:
            self.finish = piece.finish_reason

    def _add_logprobs(self, logprobs: Logprobs) -> None:
        if logprobs.content is None and logprobs.token_logprobs is None:
            return
        if self.logprobs is None:
            self.logprobs = []
        if logprobs.content is not None:
            self.logprobs.extend([entry.logprob for entry in logprobs.content])
        else:
            self.logprobs.extend(logprobs.token_logprobs or ())

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key == "content" and isinstance(value, str):
                self.text.append(value)
            elif key == "tool_calls" and isinstance(value, list):
                for piece in value:
                    self._add_tool(piece)
            elif isinstance(value, str) and key != "role":
                self.message[key] = (self.message.get(key) or "") + value
            elif value is not None:
                self.message[key] = value

    def _add_tool(self, piece: Any) -> None:
        if not isinstance(piece, dict) or not isinstance(index := piece.get("index", 0), int):
            raise BadAnswer("a tool call of the engine's stream is not an object with an index")
        tool = self.tools.setdefault(
            index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        tool["id"] = piece.get("id") or tool["id"]
        function = piece.get("function")
        if isinstance(function, dict):
            tool["function"]["name"] += function.get("name") or ""
            tool["function"]["arguments"] += function.get("arguments") or ""

    def choice(self, api: str) -> EngineChoice:
        """As a whole choice."""
        text = "".join(self.text)
        message: dict[str, Any] | None = None
        if api == "chat":
            message = {
                "role": "assistant",
                "content": text if text or not self.tools else None,
                **self.message,
            }
            if self.tools:
                message["tool_calls"] = [self.tools[i] for i in sorted(self.tools)]
        return EngineChoice(
            index=self.index,
            message=message,
            text=None if api == "chat" else text,
            finish_reason=self.finish,
            token_ids=self.ids,
            prompt_token_ids=self.prompt,
            logprobs=None if self.logprobs is None else Logprobs(token_logprobs=self.logprobs),
        )


class AnswerAssembler:
    """An answer from its chunks. ``expected``: choices to come before the answer counts as finished."""

    def __init__(self, api: str, expected: int = 1) -> None:
        self._api = api
        self._expected = expected
        self._choices: dict[int, _PartialChoice] = {}
        self._head = EngineAnswer(choices=[])
        self._finished = 0

    @property
    def finished(self) -> bool:
        """Every expected choice has its finish reason."""
        return self._finished >= self._expected

    @property
    def tokens(self) -> int:
        """Token ids that have arrived."""
        return sum(len(partial.ids or ()) for partial in self._choices.values())

    @property
    def empty(self) -> bool:
        """No choice has begun."""
        return not self._choices

    def add(self, chunk: AnswerChunk) -> None:
        """Take the next chunk."""
        head = self._head
        for name in ("id", "created", "model", "usage", "sampling", "guided_choice_ids"):
            if (value := getattr(chunk, name)) is not None:
                setattr(head, name, value)
        if chunk.policy_version is not None:  # of several choices, one may have begun before an update
            versions = (chunk.policy_version, head.policy_version)
            head.policy_version = min(v for v in versions if v is not None)
        if chunk.prompt_token_ids is not None and head.prompt_token_ids is None:
            head.prompt_token_ids = chunk.prompt_token_ids
        several = len(chunk.choices) > 1
        if several and len({piece.index for piece in chunk.choices}) != len(chunk.choices):
            raise BadAnswer("two choices of a chunk of the engine's stream have the same index")
        for piece in chunk.choices:
            partial = self._choices.get(piece.index)
            if partial is None:
                partial = self._choices[piece.index] = _PartialChoice(piece.index)
            was = partial.finish
            partial.add(piece)
            if was is None and partial.finish is not None:
                self._finished += 1

    def answer(self) -> EngineAnswer:
        """What has arrived so far, as a whole answer."""
        self._head.choices = [self._choices[i].choice(self._api) for i in sorted(self._choices)]
        return self._head
