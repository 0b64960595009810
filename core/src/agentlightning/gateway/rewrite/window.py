"""The messages of a prompt that may be dropped when it is too long, and the pinned messages.

A prompt is cut in blocks: an assistant message with tool calls and the results of these calls are one block,
so that every result keeps its call. Pinned are the leading system (or developer) messages, the first
user message (where an agent's task or its role card stands), the last user message, and the last block. The
others, the chatter, are dropped oldest first. Messages are never cut into.

Invariant: the remaining messages keep their order, and each is the agent's own, unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from agentlightning.types.record import tool_calls_of

Message = Mapping[str, Any]
SYSTEM = ("system", "developer")
RESULT = ("tool", "function")
FRAME = 64
"""Bytes allowed for the markup that a template puts around one message."""
PREAMBLE = 2_048
"""Bytes allowed for a template's own text: a default system message, instructions for tool calls."""
_SPOKEN = ("messages", "prompt")
_LISTED = ("tools", "functions", "documents", "chat_template_kwargs", "chat_template")


def upper_bound(request: Mapping[str, Any]) -> int:
    """An upper bound on the tokens of a request's prompt, without a tokenizer.

    A token is at least one byte of the rendered text. That text is no longer than the messages' JSON (whose
    keys and quotes outweigh a template's markup) with room for frames and preamble; tools count twice,
    because templates indent them.
    """
    spoken = sum(len(msgspec.json.encode(request[name])) for name in _SPOKEN if request.get(name))
    listed = sum(len(msgspec.json.encode(request[name])) for name in _LISTED if request.get(name))
    messages = request.get("messages")
    frames = FRAME * len(messages) if isinstance(messages, list) else 0
    return spoken + 2 * listed + frames + PREAMBLE


def blocks(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """``[start, end)`` of each block, in order; a tool's result is in the block of its call."""
    found: list[tuple[int, int]] = []
    calls: dict[str, int] = {}
    for i, message in enumerate(messages):
        start = i
        if message.get("role") in RESULT and i:
            start = calls.get(str(message.get("tool_call_id")), i - 1)
        while found and found[-1][1] > start:
            start = min(start, found.pop()[0])
        found.append((start, i + 1))
        for call in tool_calls_of(message):
            if call.get("id"):
                calls[str(call["id"])] = i
    return found


class Window:
    """A conversation whose chatter can be dropped, oldest first, block by block."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        pinned = _pinned(messages)
        every = blocks(messages)
        self._chatter = [b for b in every[:-1] if pinned.isdisjoint(range(*b))]
        sizes = [len(msgspec.json.encode(messages[slice(*b)])) for b in self._chatter]
        self.bytes = [0, *accumulate(sizes)]
        """Bytes of JSON that dropping 0, 1, 2, … blocks saves."""

    def __len__(self) -> int:
        """Number of blocks that may be dropped."""
        return len(self._chatter)

    @property
    def origin(self) -> bytes:
        """Digest of the chat's beginning, up to its first chatter: later turns of the chat share it."""
        end = self._chatter[0][1] if self._chatter else 0
        return hashlib.blake2b(msgspec.json.encode(self.messages[:end]), digest_size=16).digest()

    def without(self, n: int) -> list[Message]:
        """The messages without the ``n`` oldest blocks of chatter."""
        dropped = {i for b in self._chatter[:n] for i in range(*b)}
        return [m for i, m in enumerate(self.messages) if i not in dropped]

    def dropped(self, n: int) -> list[list[int]]:
        """Ranges ``[start, end)`` of the messages in the ``n`` oldest blocks, joined where they touch."""
        out: list[list[int]] = []
        for start, end in self._chatter[:n]:
            if out and out[-1][1] == start:
                out[-1][1] = end
            else:
                out.append([start, end])
        return out


def _pinned(messages: Sequence[Message]) -> set[int]:
    """Indices of the leading system messages, and of the first and the last user message."""
    head = 0
    while head < len(messages) and messages[head].get("role") in SYSTEM:
        head += 1
    users = [i for i, m in enumerate(messages) if m.get("role") == "user"]
    return {*range(head), *users[:1], *users[-1:]}
