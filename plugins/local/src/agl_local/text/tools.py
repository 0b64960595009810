"""Tool calls in the hermes form: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` inside the text.

Invariant: nothing is lost. The segments of a parse concatenate to the text; every block is either a call,
with its arguments kept character by character, or stays in the content with a reason. A stream of any
pieces gives the same parse.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from json.decoder import JSONDecoder
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SPACE = " \t\r\n"
_DECODER = JSONDecoder(parse_constant=lambda name: _bad(f"{name} is not JSON"))


@dataclass(frozen=True)
class ToolCall:
    """One parsed call; ``arguments`` is the very substring of the text."""

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
    white space around a call, which belongs to neither.
    """

    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    segments: list[tuple[str, str]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.content, self.calls))


class HermesStream:
    """Splits text that arrives in pieces into content and calls; holds back what may belong to a call."""

    def __init__(self, new_id: Callable[[int], str] | None = None) -> None:
        self.calls: list[ToolCall] = []
        self.malformed: list[str] = []
        self.segments: list[tuple[str, str]] = []
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
            start = self._buffer.find(OPEN)
            if start < 0:
                content.append(self._take_text(final))
                break
            end = self._buffer.find(CLOSE, start)
            if end < 0 and not final:
                # White space before the block stays with it until we know whether it is a call.
                content.append(self._text(self._buffer[:start].rstrip(_SPACE)))
                break
            content.append(self._block(start, end))
        return "".join(content), self.calls[first:]

    def _take_text(self, final: bool) -> str:
        """No opening tag in the buffer: release all but what may become one, and the space before it."""
        text = self._buffer
        if not final:
            keep = next(
                (n for n in range(min(len(OPEN) - 1, len(text)), 0, -1) if OPEN.startswith(text[-n:])), 0
            )
            text = text[: len(text) - keep].rstrip(_SPACE)
        return self._text(text)

    def _block(self, start: int, end: int) -> str:
        """A block at ``start`` whose closing tag is at ``end`` (-1: the text ended first)."""
        stop = end + len(CLOSE) if end >= 0 else len(self._buffer)
        body = self._buffer[start + len(OPEN) : end if end >= 0 else stop]
        try:
            if end < 0:
                raise ValueError("the text ends before </tool_call>")
            name, arguments = parse_call(body)
        except ValueError as why:
            self.malformed.append(str(why))
            again = self._buffer.find(OPEN, start + len(OPEN), stop)
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
        self.calls.append(ToolCall(self._new_id(len(self.calls)), name, arguments))
        self._after_call = True
        return text

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


def parse_hermes(text: str, new_id: Callable[[int], str] | None = None) -> Parsed:
    """Content (None when nothing but calls) and calls of ``text``; ``new_id`` names the k-th call."""
    stream = HermesStream(new_id)
    content = stream.push(text)[0]
    content += stream.finish()[0]
    shown = content if content or not stream.calls else None
    return Parsed(shown, stream.calls, stream.malformed, stream.segments)


def parse_call(body: str) -> tuple[str, str]:
    """Name and verbatim arguments of the JSON between the tags. Raises ValueError saying what is wrong."""
    try:
        spans = _top_level(body)
    except RecursionError:
        raise ValueError("the call is nested too deeply") from None
    unknown = sorted(set(spans) - {"name", "arguments"})
    if unknown:
        raise ValueError(f"unexpected keys {unknown}")
    if "name" not in spans or "arguments" not in spans:
        raise ValueError(f"the call has no {'name' if 'name' not in spans else 'arguments'!r}")
    name, arguments = spans["name"], spans["arguments"]
    if not isinstance(name[0], str) or not name[0] or not name[0].isprintable():
        raise ValueError("the name is not a printable string")
    if not isinstance(arguments[0], dict):
        raise ValueError(f"the arguments are {type(arguments[0]).__name__}, not an object")
    return name[0], arguments[1]


def _top_level(body: str) -> dict[str, tuple[Any, str]]:
    """Values of a JSON object with their source text, by key."""
    at = _skip(body, 0)
    if body[at : at + 1] != "{":
        raise ValueError("the call is not a JSON object")
    found: dict[str, tuple[Any, str]] = {}
    at = _skip(body, at + 1)
    while body[at : at + 1] != "}":
        if found:
            at = _skip(body, _expect(body, at, ","))
        _expect(body, at, '"')
        key, at = _DECODER.raw_decode(body, at)
        if key in found:
            raise ValueError(f"the key {key!r} appears twice")
        at = _skip(body, _expect(body, _skip(body, at), ":"))
        value, end = _DECODER.raw_decode(body, at)
        found[key] = (value, body[at:end])
        at = _skip(body, end)
    if body[at + 1 :].strip(_SPACE):
        raise ValueError("text after the JSON object")
    return found


def _expect(body: str, at: int, char: str) -> int:
    if body[at : at + 1] != char:
        raise ValueError(f"expected {char} at character {at} of the call")
    return at + 1


def _skip(body: str, at: int) -> int:
    while at < len(body) and body[at] in _SPACE:
        at += 1
    return at


def _bad(why: str) -> Any:
    raise ValueError(why)


__all__ = ["HermesStream", "Parsed", "ToolCall", "parse_call", "parse_hermes"]
