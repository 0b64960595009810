"""Find out why a call whose messages continue an earlier call does not continue its token ids.

Such a call repeats its context at full cost, so the reason has a name (:data:`MERGE_FAILURES`). The forest
itself finds ``branch``. Token ids decide which calls merge; messages show which calls *should* have merged.
Two messages are equal if role, text and tool calls are equal; names, ids and refusals that frameworks add do
not count. The classification uses messages and ids only, no tokenizer: it is the likeliest reason, not a
proof.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

from agentlightning.types import Call
from agentlightning.types.record import tool_calls_of
from agentlightning.types.tokens import common_prefix, pack

THINK_END = "</think>"


class Message(NamedTuple):
    """The compared parts of a chat message."""

    role: str
    text: str
    tools: tuple[tuple[str, str], ...]
    """(name, arguments) of each tool call."""


def messages(call: Call, known: dict[int, Message] | None = None) -> list[Message]:
    """Return the request's messages; none for ``/v1/completions``. ``known``: messages that were read before,
    by identity; calls that were read from a store share them.
    """
    found = (call.request or {}).get("messages")
    if not isinstance(found, list):
        return []
    known = {} if known is None else known
    for item in found:
        if id(item) not in known and isinstance(item, Mapping):
            known[id(item)] = _message(item)
    return [known[id(item)] for item in found if id(item) in known]


def reply(call: Call) -> Message | None:
    """Return the call's answer as a message; ``None`` if it has no content."""
    said = call.response or {}
    given = any(said.get(name) for name in ("content", "text", "tool_calls"))
    return _message({"role": "assistant", **said}) if given else None


def has_reasoning(call: Call) -> bool:
    """Whether the answer has a reasoning part, inline (``</think>``) or in a field of its own."""
    said = call.response or {}
    split = any(said.get(name) for name in ("reasoning_content", "reasoning"))
    return split or THINK_END in _text(said.get("content") or said.get("text"))


def without_reasoning(message: Message) -> Message:
    """Return the message as a template renders it in later turns: only the text after the reasoning."""
    return message._replace(text=message.text.rsplit(THINK_END, 1)[-1].strip())


def _message(item: Mapping[str, Any]) -> Message:
    tools = tuple(map(_tool, tool_calls_of(item)))
    return Message(str(item.get("role", "")), _text(item.get("content") or item.get("text")), tools)


def _text(content: Any) -> str:
    """Text of a content: a string, a list of parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(_part, content))
    return _json(content)


def _part(part: Any) -> str:
    plain = isinstance(part, Mapping) and part.get("type") in (None, "text")
    return str(part.get("text", "")) if plain else _json(part)


def _tool(tool: Mapping[str, Any]) -> tuple[str, str]:
    function = tool.get("function")
    function = function if isinstance(function, Mapping) else tool
    arguments = function.get("arguments", "")
    return str(function.get("name", "")), arguments if isinstance(arguments, str) else _json(arguments)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


OPENING_TOKENS = 4
"""Tokens around the start of an answer that belong to its opening (``<think>\\n`` given by the template)."""
MERGE_FAILURES: Mapping[str, str] = MappingProxyType(
    {
        "think-stripped": "the earlier answer's reasoning is gone from this prompt",
        "template": "the chat template renders the text before the answer differently (date, tools, …)",
        "retokenised": "the earlier answer stands in this prompt with other token ids",
        "edited": "the agent changed the earlier answer before sending it back",
        "truncated": "earlier messages were dropped from this prompt",
        "temperature": "it continues the earlier call, but was sampled at another temperature",
        "branch": "another call went on from there first: this row repeats the shared beginning as context",
    }
)
"""Reason why a call did not merge → what happened to the prompt."""


class MergeLink(NamedTuple):
    """How a trained call relates to earlier calls of its rollout."""

    kind: str
    """``extends`` (same row), ``branch`` (its own row, from a shared beginning), ``break`` (its messages
    continue an earlier call, its ids do not), ``start``."""
    earlier: str | None
    """The call that it extends, branches from, or failed to merge with."""
    reason: str
    """Of a branch or break, a key of ``MERGE_FAILURES``."""

    def text(self) -> str:
        """Describe the link in one sentence."""
        if self.kind == "extends":
            return f"extends {self.earlier}: its prompt begins with that call's prompt and answer, id for id"
        if self.kind == "start":
            return "begins a row: no earlier call of its rollout and policy is the beginning of its prompt"
        verb = "branches from" if self.kind == "branch" else "did not merge with"
        return f"{verb} {self.earlier} ({self.reason}): {MERGE_FAILURES[self.reason]}"


class Continuations:
    """Finds the earlier call that a request continues by its messages. Calls are added in order.

    Work per call is linear in its messages: beginnings are compared by a running hash.
    """

    def __init__(self) -> None:
        self._by_messages: dict[int, list[tuple[Call, list[Message]]]] = {}
        self._by_reply: dict[Message, tuple[Call, list[Message]]] = {}
        self._known: dict[int, Message] = {}

    def add(self, call: Call) -> None:
        """Make a call findable."""
        sent = messages(call, self._known)
        if not sent:
            return
        self._by_messages.setdefault(_prefix_hashes(sent)[-1], []).append((call, sent))
        if answer := reply(call):
            self._by_reply[without_reasoning(answer)] = (call, sent)

    def find(self, call: Call) -> tuple[Call, bool] | None:
        """Return the earlier call, and whether messages were dropped since; ``None`` if there is none."""
        sent = messages(call, self._known)
        hashes = _prefix_hashes(sent)
        answers = [n for n in range(len(sent) - 1, -1, -1) if sent[n].role == "assistant"]
        for n in answers:
            same = self._by_messages.get(hashes[n], ())
            candidates = [c for c, m in same if m == sent[:n] and c.sequence < call.sequence]
            if candidates:
                return max(candidates, key=lambda c: _similarity(c, sent[n])), False
        if not answers:
            return None
        last = answers[0]
        earlier, before = self._by_reply.get(without_reasoning(sent[last]), (None, []))
        if earlier is None or earlier.sequence >= call.sequence or last >= len(before):
            return None
        return (earlier, True) if _subsequence(sent[:last], before) else None


def classify(earlier: Call, later: Call, dropped: bool) -> str:
    """Why ``later`` does not extend ``earlier``, which it continues by its messages."""
    prompt: Sequence[int] = earlier.prompt_ids or ()
    answer: Sequence[int] = earlier.response_ids or ()
    shared = common_prefix(pack(prompt) + pack(answer), pack(later.prompt_ids or ()))
    if dropped or "dropped" in later.edited:
        return "truncated"
    if shared == len(prompt) + len(answer) < len(later.prompt_ids or []):
        return "temperature"
    quoted = messages(later)[len(messages(earlier))]
    opening = len(prompt) - OPENING_TOKENS <= shared <= len(prompt) + OPENING_TOKENS
    gone = shared >= len(prompt) and THINK_END not in quoted.text
    if has_reasoning(earlier) and (opening or gone):
        return "think-stripped"
    if shared < len(prompt):
        return "template"
    sent = reply(earlier)
    if sent is not None and without_reasoning(sent) != without_reasoning(quoted):
        return "edited"
    return "template" if shared == len(prompt) + len(answer) else "retokenised"


def _prefix_hashes(sent: Iterable[Message]) -> list[int]:
    """Hash of the first 0, 1, 2, … messages. Equality is confirmed on the messages themselves."""
    return list(accumulate(sent, lambda before, message: hash((before, message)), initial=0))


def _similarity(call: Call, quoted: Message) -> tuple[int, int]:
    """How well a call's answer matches the quoted message; later calls win ties."""
    answer = reply(call)
    if answer is None:
        return 0, call.sequence
    if answer == quoted:
        return 2, call.sequence
    return int(without_reasoning(answer) == without_reasoning(quoted)), call.sequence


def _subsequence(short: Sequence[Message], long: Sequence[Message]) -> bool:
    rest = iter(long)
    return all(message in rest for message in short)
