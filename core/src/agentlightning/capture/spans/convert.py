"""Convert OpenTelemetry's finished spans to ours: hex ids, seconds, and attributes that survive JSON.

Invariant: no attribute is left out. A value without a JSON form becomes text and is counted; a value that is
too large or endless is cut, marked and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from agentlightning.capture.context import AttemptContext
from agentlightning.capture.counts import COUNTS
from agentlightning.keys import PREFIX
from agentlightning.types import Span
from agentlightning.types.arrays import unwrap_scalar

_SECRET = frozenset({"api_key", "authorization", "Authorization"})
_ATTEMPT_KEY = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]{40,}")
_STATUS: dict[StatusCode, Any] = {StatusCode.UNSET: "unset", StatusCode.OK: "ok", StatusCode.ERROR: "error"}


LONGEST_TEXT = 16 << 20
"""Characters of one text. A longer text is cut, marked and counted."""
MOST_VALUES = 200_000
"""Values of one conversion, nested ones included. A mark replaces the rest, which is counted."""
DEEPEST = 64
"""Levels of nesting. A mark replaces a deeper value, which is counted."""


def jsonable(value: Any) -> Any:
    """Return ``value`` with tuples as lists, keys as text, and values without a JSON form as text (counted).

    Subclasses of text and numbers (enums, numpy's float64) become plain ones, scalars of array libraries the
    number they hold. Secrets are masked: an ``api_key`` field, and an attempt's key anywhere in a text.

    It ends and never raises, whatever objects agents hand over: marks in the text replace cycles, endless
    nesting, endless sequences and values whose methods raise.
    """
    return _Conversion().convert(value, 0)


def utf8_text(value: str) -> str:
    """Return ``value`` as text that has a UTF-8 form: half characters (lone surrogates) become ``?``."""
    plain = str.__str__(value)
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode()


def error_text(error: BaseException, longest: int = 2000) -> str:
    """Return an error's message as text that can be stored. The ``__str__`` of an agent's error may raise."""
    try:
        message = str(error)[:longest].strip()
    except Exception as another:
        message = f"its message cannot be read ({type(another).__name__})"
    return utf8_text(message) or "no message"


def describe_error(error: BaseException) -> str:
    """Return an error's type and message as text that can be stored."""
    return f"{type(error).__name__}: {error_text(error)}"[:2000]


class _Conversion:
    """Converts a bounded number of values."""

    def __init__(self) -> None:
        self._left = MOST_VALUES
        self._above: set[int] = set()
        """Ids of the containers around the current value."""

    def convert(self, value: Any, depth: int) -> Any:
        """Return the JSON form of one value."""
        self._left -= 1
        try:
            return self._value(value, depth)
        except Exception as error:
            return _placeholder(f"a {type(value).__name__} that raises {type(error).__name__}")

    def _value(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value) if math.isfinite(value) else _as_text(value)
        if self._left < 0:
            return _placeholder("too many values")
        if id(value) in self._above:
            return _placeholder("a cycle")
        if depth >= DEEPEST:
            return _placeholder("nested too deeply")
        self._above.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self._mapping(value, depth + 1)
            if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
                return self._sequence(value, depth + 1)
            if (number := unwrap_scalar(value)) is not value:
                return self.convert(number, depth + 1)
            if callable(dump := getattr(value, "model_dump", None)):
                return self.convert(dump(), depth + 1)
            return _as_text(value)
        finally:
            self._above.discard(id(value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, inner in value.items():
            if self._left <= 0:
                found["…"] = _placeholder("too many values")
                break
            name = _text(key if isinstance(key, str) else str(key))
            found[name] = "***" if name in _SECRET and inner else self.convert(inner, depth)
        return found

    def _sequence(self, value: Sequence[Any], depth: int) -> list[Any]:
        found: list[Any] = []
        for inner in value:
            if self._left <= 0:
                found.append(_placeholder("too many values"))
                break
            found.append(self.convert(inner, depth))
        return found


def _text(value: str) -> str:
    plain = str.__str__(value)
    if len(plain) > LONGEST_TEXT:
        COUNTS.add("convert-cut")
        plain = f"{plain[:LONGEST_TEXT]}… (cut: {len(plain)} characters)"
    return _ATTEMPT_KEY.sub("agl-***", plain)


def _as_text(value: Any) -> str:
    COUNTS.add("convert-stringified")
    return _text(str(value))


def _placeholder(why: str) -> str:
    """Return the mark that replaces a value."""
    COUNTS.add("convert-cut")
    return f"({why})"


def convert(span: ReadableSpan, context: AttemptContext) -> Span:
    """Convert a finished OpenTelemetry span to a span of ``context``'s attempt."""
    own = span.context

    def attributes(part: Any) -> dict[str, Any]:
        found: dict[str, Any] = jsonable(dict(part.attributes or {}))
        return found

    return Span(
        rollout_id=context.rollout_id,
        attempt_id=context.attempt_id,
        name=span.name,
        trace_id=f"{own.trace_id:032x}" if own else "",
        span_id=f"{own.span_id:016x}" if own else "",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else None,
        kind=span.kind.name.lower(),
        status=_STATUS[span.status.status_code],
        status_message=span.status.description,
        attributes=attributes(span),
        events=[
            {"name": event.name, "time": event.timestamp / 1e9, "attributes": attributes(event)}
            for event in span.events
        ],
        links=[
            {
                "trace_id": f"{link.context.trace_id:032x}",
                "span_id": f"{link.context.span_id:016x}",
                "attributes": attributes(link),
            }
            for link in span.links
        ],
        resource=attributes(span.resource),
        start_time=(span.start_time or 0) / 1e9,
        end_time=(span.end_time or 0) / 1e9,
    )
