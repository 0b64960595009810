"""Move the text in ``<think>…</think>`` from an answer's content to ``reasoning_content``, as vLLM calls it.

Whole answers and streams use one splitter, so that both give the same result, also if a chunk ends within a
tag. Tags do not nest: the first ``</think>`` closes a block. Several blocks are joined by a blank line. A
block without ``</think>`` ends with the answer. White space around a block is removed. With ``split-opened``
the answer begins inside a block, because the chat template ends the prompt with ``<think>``.

Invariant: a text without a tag stays unchanged; no character is in both parts.
"""

from __future__ import annotations

from typing import Any

import msgspec

OPEN, CLOSE = "<think>", "</think>"
FIELD = "reasoning_content"
_SPLIT_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which engines return reasoning that they have split off themselves."""


class ReasoningSplitter:
    """Splits a text that arrives in pieces. ``opened``: the text begins inside a block."""

    def __init__(self, opened: bool = False) -> None:
        self._rest = ""
        self._inside = opened
        self._may_repeat = opened
        """The answer may still begin with the tag that the template has written already."""
        self._held = ""
        """White space that is returned only if text follows in the same part."""
        self._fresh = True
        """The present part has only white space so far."""
        self._reasoned = False
        """Some reasoning has been returned."""
        self.blocks = int(opened)

    def feed(self, text: str) -> tuple[str, str]:
        """Take the next piece. Return the content and the reasoning that are certain now."""
        self._rest += text
        out: tuple[list[str], list[str]] = ([], [])
        if self._may_repeat and not self._opening():
            return "", ""
        while (at := self._rest.find(tag := CLOSE if self._inside else OPEN)) >= 0:
            self._emit(out, self._rest[:at])
            self._rest = self._rest[at + len(tag) :]
            self._switch()
        keep = next((n for n in range(len(tag) - 1, 0, -1) if self._rest.endswith(tag[:n])), 0)
        cut = len(self._rest) - keep
        self._emit(out, self._rest[:cut])
        self._rest = self._rest[cut:]
        return "".join(out[0]), "".join(out[1])

    def end(self) -> tuple[str, str]:
        """Return the content and the reasoning that :meth:`feed` held back as a possible tag."""
        out: tuple[list[str], list[str]] = ([], [])
        self._may_repeat = False
        self._emit(out, self._rest)
        self._rest = ""
        if not self.blocks:  # a text of white space, and nothing was split
            out[0].append(self._held)
        return "".join(out[0]), "".join(out[1])

    def _opening(self) -> bool:
        """Skip a repeated opening tag. Return ``False`` until it is certain whether there is one."""
        start = self._rest.lstrip()
        if start.startswith(OPEN):
            self._rest = start[len(OPEN) :]
        elif OPEN.startswith(start):
            return False
        self._may_repeat = False
        return True

    def _switch(self) -> None:
        if not self._inside:
            self.blocks += 1
        self._inside = not self._inside
        self._held, self._fresh = "", True

    def _emit(self, out: tuple[list[str], list[str]], text: str) -> None:
        if self._inside or self._fresh:
            text = self._held + text
            solid = text.strip()
            if not solid:
                self._held = text
                return
            tail = text[len(text.rstrip()) :] if self._inside else ""
            starts = self._fresh and (self._inside or self.blocks)
            body = text[: len(text) - len(tail)]
            self._held, text = tail, body.lstrip() if starts else body
            if self._inside and self._fresh and self._reasoned:
                text = "\n\n" + text
            self._fresh = False
            self._reasoned = self._reasoned or self._inside
        out[1 if self._inside else 0].append(text)


def split_message(message: dict[str, Any], opened: bool) -> bool:
    """Split an assistant message in place. Return whether there was anything to split."""
    text = message.get("content")
    if not isinstance(text, str) or any(message.get(name) for name in _SPLIT_FIELDS):
        return False
    splitter = ReasoningSplitter(opened)
    first, last = splitter.feed(text), splitter.end()
    if not splitter.blocks:
        return False
    content, reasoning = first[0] + last[0], first[1] + last[1]
    message["content"] = content or (None if message.get("tool_calls") else "")
    if reasoning:
        message[FIELD] = reasoning
    return True


def split_answer(raw: bytes, opened: bool) -> bytes:
    """Return the body of a whole, valid chat answer with every message split; ``raw`` if there is nothing to
    split.
    """
    answer: dict[str, Any] = msgspec.json.decode(raw)
    split = [split_message(choice["message"], opened) for choice in answer["choices"]]
    return msgspec.json.encode(answer) if any(split) else raw


class StreamReasoningSplitter:
    """Splits the deltas of a stream, each choice for itself."""

    def __init__(self, opened: bool) -> None:
        self._opened = opened
        self._splitters: dict[int, ReasoningSplitter] = {}

    def chunk(self, raw: bytes) -> bytes:
        """Return the data of one valid event with its deltas split."""
        chunk: dict[str, Any] = msgspec.json.decode(raw)
        changed = [self._choice(choice) for choice in chunk.get("choices") or ()]
        return msgspec.json.encode(chunk) if any(changed) else raw

    def _choice(self, choice: dict[str, Any]) -> bool:
        splitter = self._splitters.setdefault(choice.get("index", 0), ReasoningSplitter(self._opened))
        delta = choice.get("delta") or {}
        text = delta.get("content")
        content, reasoning = splitter.feed(text) if isinstance(text, str) else ("", "")
        if choice.get("finish_reason") is not None:
            last = splitter.end()
            content, reasoning = content + last[0], reasoning + last[1]
        if content == (text or "") and not reasoning:
            return False
        if content or text is not None:
            delta["content"] = content
        if reasoning:
            delta[FIELD] = reasoning
        choice["delta"] = delta
        return True
