"""Calls of tools in the text of an answer, read in the syntax of the policy's own template.

Invariant: nothing is lost. The segments of a parse concatenate to the text; every block is either calls, or
stays in the content with a reason. A stream of any pieces gives the same parse.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agl_local.text.syntax import CallSyntax, Schemas

_SPACE = " \t\r\n"


@dataclass(frozen=True)
class ToolCall:
    """One parsed call; ``arguments`` is the very substring of the text where the syntax has them as JSON."""

    id: str
    name: str
    arguments: str

    def to_openai(self) -> dict[str, Any]:
        """The object of ``message.tool_calls``."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass
class Parsed:
    """Content and calls of a text (unpacks to these two); ``malformed`` says why a block stayed in the
    content.

    ``segments`` are ("text" | "call" | "space", raw) in order, concatenating to the input; "space" is the
    white space around a block, which belongs to neither.
    """

    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    segments: list[tuple[str, str]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.content, self.calls))


class CallStream:
    """Splits text that arrives in pieces into content and calls; holds back what may belong to a call.

    ``schemas``: of the offered tools, which decide whether an argument in tags is a string.
    """

    def __init__(
        self,
        syntax: CallSyntax,
        new_id: Callable[[int], str] | None = None,
        schemas: Schemas | None = None,
    ) -> None:
        self.calls: list[ToolCall] = []
        self.malformed: list[str] = []
        self.segments: list[tuple[str, str]] = []
        self._syntax = syntax
        self._schemas = schemas or {}
        self._new_id = new_id or (lambda _: f"call_{secrets.token_hex(12)}")
        self._buffer = ""
        self._after_call = False
        self._any_text = False

    def push(self, piece: str) -> tuple[str, list[ToolCall]]:
        """Feed text; returns the content that is now certain and the calls that were completed."""
        self._buffer += piece
        return self._advance(final=False)

    def finish(self) -> tuple[str, list[ToolCall]]:
        """No more text: what was held back."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> tuple[str, list[ToolCall]]:
        content: list[str] = []
        first = len(self.calls)
        while self._buffer:
            if self._after_call:
                self._strip_leading(final)
            start, opened = self._find_open()
            if start < 0:
                if not self._syntax.opens and self._may_be_block() and not final:
                    break
                content.append(self._take_text(final))
                break
            end = self._buffer.find(self._syntax.close, start + len(opened)) if self._syntax.close else -1
            if end < 0 and not final:
                # White space before the block stays with it until we know whether it is a call.
                content.append(self._text(self._buffer[:start].rstrip(_SPACE)))
                break
            content.append(self._block(start, opened, end))
        return "".join(content), self.calls[first:]

    def _find_open(self) -> tuple[int, str]:
        """Where the next block begins and by which literal; (-1, "") if none does."""
        found = [(at, o) for o in self._syntax.opens if (at := self._buffer.find(o)) >= 0]
        head = self._syntax.bare_head
        if head and (at := self._buffer.find(head)) >= 0 and all(at < hit[0] for hit in found):
            return at, ""  # it is a part of the block
        return min(found, key=lambda hit: hit[0], default=(-1, ""))

    def _may_be_block(self) -> bool:
        """Whether the answer as a whole may be a block: nothing of it was given out yet."""
        if self._any_text or self.calls or self.malformed:
            return False
        begun = self._buffer.lstrip(_SPACE)[:1]
        return not begun or not self._syntax.first or begun in self._syntax.first

    def _take_text(self, final: bool) -> str:
        """Nothing opens a block in the buffer: release all but what may, and the space before it."""
        if final and not self._syntax.opens and self._may_be_block() and self._buffer.strip(_SPACE):
            return self._block(0, "", -1)
        text = self._buffer
        if not final:
            keep = max(
                (_overlap(text, opened) for opened in (*self._syntax.opens, self._syntax.bare_head)),
                default=0,
            )
            text = text[: len(text) - keep].rstrip(_SPACE)
        return self._text(text)

    def _block(self, start: int, opened: str, end: int) -> str:
        """A block at ``start`` whose closing literal is at ``end`` (-1: the text ended first)."""
        stop = end + len(self._syntax.close) if end >= 0 else len(self._buffer)
        body = self._buffer[start + len(opened) : end if end >= 0 else stop]
        try:
            if end < 0:
                body = self._before_end(body)
            raw = self._syntax.read(body, self._schemas)
        except ValueError as why:
            if opened or self._syntax.first:  # else any text might be a block: it is none
                self.malformed.append(str(why))
            again = self._buffer.find(opened, start + len(opened), stop) if opened else -1
            if again < 0 or end < 0:
                return self._text(self._buffer[:stop])
            # A block opened inside a broken one may be sound: only what comes before it is given up.
            return self._text(self._buffer[:again].rstrip(_SPACE))
        before = self._buffer[:start]
        kept = before.rstrip(_SPACE)
        text = self._text(kept)
        self._segment("space", before[len(kept) :])
        self._segment("call", self._buffer[: stop - len(kept)][start - len(kept) :])
        self._buffer = self._buffer[stop - len(kept) :]
        known = {call.id for call in self.calls}
        for call in raw:
            ident = call.id if call.id and call.id not in known else self._new_id(len(self.calls))
            known.add(ident)
            self.calls.append(ToolCall(ident, call.name, call.arguments))
        self._after_call = True
        return text

    def _before_end(self, body: str) -> str:
        """The body of a block that the text's end cuts: end tokens have no text, and may be a part of what
        closes it.
        """
        close = self._syntax.close
        for cut in (mark.start() for mark in re.finditer(r"(?<=>)\s*<", close)):
            if body.rstrip(_SPACE).endswith(close[:cut]):
                return body.rstrip(_SPACE).removesuffix(close[:cut])
        if close and not self._syntax.open_ended:
            raise ValueError(f"the text ends before {close}")
        return body

    def _text(self, text: str) -> str:
        """Release ``text``, the beginning of the buffer, as content."""
        self._segment("text", text)
        self._buffer = self._buffer[len(text) :]
        if text:
            self._after_call = False
            self._any_text = True
        return text

    def _strip_leading(self, final: bool) -> None:
        """White space after a call counts only between two pieces of content."""
        rest = self._buffer.lstrip(_SPACE)
        if self._any_text and (rest or not final):
            return
        self._segment("space", self._buffer[: len(self._buffer) - len(rest)])
        self._buffer = rest

    def _segment(self, kind: str, raw: str) -> None:
        if raw:
            self.segments.append((kind, raw))


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``word``."""
    sizes = range(min(len(word) - 1, len(text)), 0, -1)
    return next((size for size in sizes if word.startswith(text[-size:])), 0)


def parse_calls(
    text: str,
    syntax: CallSyntax,
    new_id: Callable[[int], str] | None = None,
    schemas: Schemas | None = None,
) -> Parsed:
    """Content (None when nothing but calls) and calls of ``text``; ``new_id`` names the k-th call."""
    stream = CallStream(syntax, new_id, schemas)
    content = stream.push(text)[0]
    content += stream.finish()[0]
    shown = content if content or not stream.calls else None
    return Parsed(shown, stream.calls, stream.malformed, stream.segments)


__all__ = ["CallStream", "Parsed", "ToolCall", "parse_calls"]
