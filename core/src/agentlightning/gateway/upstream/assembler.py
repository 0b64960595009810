"""Put an answer together from the chunks of an engine's stream.

Invariant: the assembled answer has the ids and logprobs of every chunk, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentlightning.gateway.errors import BadAnswer
from agentlightning.gateway.upstream.answer import AnswerChunk, EngineAnswer, EngineChoice, Logprobs

T = TypeVar("T")
_HEAD = ("id", "created", "model", "usage", "sampling", "guided_choice_ids", "grammar")
"""Top-level fields whose last value counts."""


@dataclass(slots=True)
class _PartialChoice:
    """One choice while it arrives."""

    ids: list[int] | None = None
    prompt: list[int] | None = None
    logprobs: list[float | None] | None = None
    text: list[str] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=dict)
    tools: dict[int, dict[str, Any]] = field(default_factory=dict)
    numbered: bool = False
    """A tool call came without an index and got one."""
    finish: str | None = None
    versions: list[int] = field(default_factory=list)
    """Version of each id, as far as the engine has said it."""

    def add(self, piece: EngineChoice, version: int | None = None) -> None:
        """``version``: of the ids of a piece that does not give one for each."""
        if (sampled_by := piece.policy_versions) is None and version is not None:
            sampled_by = [version] * len(piece.token_ids or ())
        self.versions += sampled_by or ()
        self.ids = _extended(self.ids, piece.token_ids)
        self.prompt = piece.prompt_token_ids if self.prompt is None else self.prompt
        if piece.logprobs is not None:
            self.logprobs = _extended(self.logprobs, piece.logprobs.numbers())
        if piece.text:
            self.text.append(piece.text)
        if piece.delta:
            self._add_delta(piece.delta)
        self.finish = piece.finish_reason or self.finish

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
        if isinstance(piece, dict) and piece.get("index") is None:
            piece["index"], self.numbered = self._next_tool(piece.get("id")), True
        if not isinstance(piece, dict) or not isinstance(index := piece["index"], int):
            raise BadAnswer("a tool call of the engine's stream is not an object with an index")
        new = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        tool = self.tools.setdefault(index, new)
        tool["id"] = piece.get("id") or tool["id"]
        if isinstance(function := piece.get("function"), dict):
            for name in ("name", "arguments"):
                tool["function"][name] += function.get(name) or ""

    def _next_tool(self, call_id: Any) -> int:
        """The index of a piece that has none: a new call's if it names another id than the last call has."""
        last = max(self.tools, default=-1)
        begins = last < 0 or (call_id is not None and call_id != self.tools[last]["id"])
        return last + 1 if begins else last

    def choice(self, index: int, api: str, oldest: int | None) -> EngineChoice:
        """Build a whole choice. ``oldest``: the version of the answer, which says it for all tokens."""
        text = "".join(self.text)
        whole = EngineChoice(index, finish_reason=self.finish, token_ids=self.ids)
        whole.prompt_token_ids = self.prompt
        whole.logprobs = None if self.logprobs is None else Logprobs(token_logprobs=self.logprobs)
        if any(version != oldest for version in self.versions):
            whole.policy_versions = self.versions
        if api != "chat":
            whole.text = text
            return whole
        content = (text or None) if self.tools else text
        whole.message = {"role": "assistant", "content": content, **self.message}
        if self.tools:
            whole.message["tool_calls"] = [self.tools[i] for i in sorted(self.tools)]
        return whole


def _extended(known: list[T] | None, more: list[T] | None) -> list[T] | None:
    """``known`` with ``more`` at its end; ``None`` while neither has come."""
    if more is None:
        return known
    if known is None:
        return list(more)
    known += more
    return known


class AnswerAssembler:
    """An answer from its chunks. ``expected``: number of choices that the answer has when it is finished."""

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

    def add(self, chunk: AnswerChunk) -> bool:
        """Take the next chunk. Return whether its tool calls had no index and got one, in the chunk too."""
        head = self._head
        for name in _HEAD:
            if (value := getattr(chunk, name)) is not None:
                setattr(head, name, value)
        if chunk.policy_version is not None:  # of several choices, one may have begun before an update
            known = chunk.policy_version if head.policy_version is None else head.policy_version
            head.policy_version = min(chunk.policy_version, known)
        if head.prompt_token_ids is None:
            head.prompt_token_ids = chunk.prompt_token_ids
        choices = chunk.choices
        if len(choices) > 1 and len({piece.index for piece in choices}) != len(choices):
            raise BadAnswer("two choices of a chunk of the engine's stream have the same index")
        for piece in choices:
            if (partial := self._choices.get(piece.index)) is None:
                partial = self._choices[piece.index] = _PartialChoice()
            finished, partial.numbered = partial.finish is not None, False
            partial.add(piece, chunk.policy_version)
            self._finished += not finished and partial.finish is not None
        return any(self._choices[piece.index].numbered for piece in choices)

    def answer(self) -> EngineAnswer:
        """Build a whole answer from the part that has arrived."""
        head = self._head
        head.choices = [
            self._choices[i].choice(i, self._api, head.policy_version) for i in sorted(self._choices)
        ]
        return head
