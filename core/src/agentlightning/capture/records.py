"""What agents hand over, made storable and checked: emitted, returned, and exported records.

:func:`convert` makes OpenTelemetry's finished spans ours: hex ids, seconds, and attributes that survive JSON
(:func:`jsonable`). No attribute is left out: a value without a JSON form becomes text and is counted; a value
that is too large or endless is cut, marked and counted.

:func:`validated` and :func:`admit` check records. Emitters, the runner (for every span of an attempt) and the
store (for OTLP) call them. Readers of a validated span may rely on the type and range of its attributes.
Invariant: an invalid record is kept as a span named ``agentlightning.bad_record`` with the reason, or refused
with the reason; it is counted, and the records beside it are not lost.
"""

from __future__ import annotations

import base64
import binascii
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from opentelemetry.trace import StatusCode

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import COUNTS
from agentlightning.keys import PREFIX
from agentlightning.log_limit import limited
from agentlightning.types import Span
from agentlightning.types.arrays import unwrap_scalar
from agentlightning.types.record import REWARD_FORMATS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

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


log = limited(__name__)

LARGEST_REWARD: Final = 2.0**53
"""Beyond it a double cannot represent every integer, and squares of gradients leave float32."""
LARGEST_INT: Final = 2**31 - 1
LONGEST_NAME: Final = 1_000
"""Characters of a span's or a reward's name, of an id, of a tag's value."""


def _box(of: Any) -> type[msgspec.Struct]:
    """Return a struct with a ``value`` of that type: msgspec reads a bare type anew at each check."""
    return msgspec.defstruct("Box", [("value", of)])


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
_Id = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
NAME, _NAME_OR_NONE, _ID = _box(_Name), _box(_Name | None), _box(_Id)
_ID_OR_NONE, _TAG = _box(_Id | None), _box(_Id | float | bool)
_NAMES: Final = (NAME, _NAME_OR_NONE, _ID, _ID_OR_NONE, _TAG)
"""Boxes of texts that are looked for: they are bounded, and have a UTF-8 form."""
_FIELDS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "name": NAME,
    **dict.fromkeys(("rollout_id", "attempt_id", "trace_id", "span_id"), _ID),
    "parent_id": _ID_OR_NONE,
    # seconds since 1970, at most some three thousand years
    **dict.fromkeys(("start_time", "end_time"), _box(Annotated[float, msgspec.Meta(ge=0, le=1e11)])),
    "status": _box(Literal["unset", "ok", "error"]),
    "kind": _box(str),
    "status_message": _box(str | None),
    **dict.fromkeys(("attributes", "resource"), _box(dict[str, Any])),
    **dict.fromkeys(("events", "links"), _box(list)),
}
"""The fields of a span and the boxes of their types."""
_PACKED: Final = (semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.LOGPROBS)
_ATTRIBUTES: Final[Mapping[str, type[msgspec.Struct]]] = {
    semconv.CHOICE: _box(Annotated[int, msgspec.Meta(ge=0, le=LARGEST_INT)]),
    semconv.AGENT_NAME: _TAG,
    **dict.fromkeys((semconv.TOKENS_DIGEST, semconv.REWARD_NAME), NAME),
    **dict.fromkeys((semconv.RESPONSE_ID, semconv.REWARD_CALL, semconv.REWARD_SPAN_ID), _NAME_OR_NONE),
    semconv.REWARD_AGENT: _NAME_OR_NONE,
    **dict.fromkeys((semconv.REWARD_FINAL, semconv.SELECTED), _box(bool)),
}
"""Attributes that readers rely on, besides those of :data:`_PACKED`, and their boxes."""
Kind = Literal["bad-record", "bad-reward", "no-reward"]


class BadRecord(ValueError):
    """An agent's value is no valid record. ``kind``: the row of the failure table."""

    def __init__(self, message: str, kind: Kind = "bad-record") -> None:
        super().__init__(message)
        self.kind: Kind = kind

    @property
    def reason(self) -> str:
        """The failure reason of the attempt: kind, then message."""
        return f"{self.kind}: {self}"


REALS = (numbers.Real, Decimal)
"""Types of rewards: int, float, ``Fraction``, ``Decimal``, and numpy's scalars."""


def is_instance(value: Any, *kinds: type) -> bool:
    """Call ``isinstance`` on the type alone: the ``__class__`` of an agent's object may raise."""
    return issubclass(type(value), kinds)


def short_repr(value: Any) -> str:
    """Return a short ``repr`` for a message. The ``__repr__`` of an agent's object may raise."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"
    return utf8_text(text if len(text) <= 80 else f"{text[:77]}…")


def reward_number(value: Any, where: str) -> float:
    """Return ``value`` as a reward: a finite float, from numpy's and torch's scalars too. Raise
    :class:`BadRecord` with the reason if it is none.
    """
    try:
        if not is_instance(value, *REALS):
            value = unwrap_scalar(value, one_element=True)
        found = float(value) if is_instance(value, *REALS) else math.nan
    except Exception as error:
        what = f"{where} of type {type(value).__name__} is no number: {error_text(error, 500)}"
        raise BadRecord(what, "bad-reward") from None
    if not math.isfinite(found):
        of = "" if is_instance(value, float) else f" but a {type(value).__name__}"
        raise BadRecord(
            f"{where} is {short_repr(value)}, not a finite number{of}: give a float, int or bool, or "
            "nothing if there is no reward (missing is not zero)",
            "bad-reward",
        )
    if abs(found) > LARGEST_REWARD:
        raise BadRecord(
            f"{where} is {found:g}: a reward lies between -2**53 and 2**53, so that sums and gradients of it "
            "stay finite; scale it down",
            "bad-reward",
        )
    return found


def check_value(value: Any, box: type[msgspec.Struct], where: str) -> None:
    """Raise :class:`BadRecord` unless ``value`` fits the ``box``, and has a UTF-8 form if that is one of the
    :data:`_NAMES`.
    """
    try:
        msgspec.convert({"value": value}, box)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter where a number is wanted
        raise BadRecord(f"{where} is {short_repr(value)}: {str(error).partition(' - at ')[0]}") from None
    if box in _NAMES and is_instance(value, str) and utf8_text(value) != value:
        raise BadRecord(f"{where} is {short_repr(value)}, which holds half a character: it has no UTF-8 form")


def checked_mapping(given: Any, where: str) -> dict[str, Any]:
    """Return ``given``, a mapping with ``str`` keys, as a dict; ``None`` as an empty one."""
    if given is None:
        return {}
    if not is_instance(given, Mapping):
        raise BadRecord(f"{where} is a {type(given).__name__}, not a mapping from names to values")
    found = dict(given)
    if odd := [name for name in found if not is_instance(name, str)]:
        raise BadRecord(f"{where}: the name {short_repr(odd[0])} is no text")
    return found


def validated(span: Span) -> Span:
    """Return ``span``, with a reward of another format translated to ours. Raise :class:`BadRecord` if it is
    invalid. A reward of Agent Lightning 0.x that nobody translates is counted."""
    if is_instance(span.attributes, dict):
        for translate in REWARD_FORMATS:
            span = translate(span)
        if not REWARD_FORMATS and any(map(_is_reward_of_0x, span.attributes.items())):
            COUNTS.add("reward-of-0.x")
            log.warning(
                "a span (%s) holds a reward in a format of Agent Lightning 0.x or AgentOps, which counts for "
                "nothing here: install agl-v03, which reads it",
                short_repr(span.name),
            )
    check_span(span)
    return span


def _is_reward_of_0x(attribute: tuple[Any, Any]) -> bool:
    name, value = attribute
    if name in ("agentops.task.output", "agentops.entity.output"):
        return is_instance(value, str) and '"type": "reward"' in value
    return is_instance(name, str) and name.startswith("agentlightning.reward.") and name.endswith(".value")


def check_span(span: Span) -> None:
    """Raise :class:`BadRecord` for an invalid span; the message names the field."""
    for name, kind in _FIELDS.items():
        check_value(getattr(span, name), kind, f"the span's {name}")
    for name, value in span.attributes.items():
        if name in _PACKED:
            _check_packed(value, f"attribute {name}")
        elif name in _ATTRIBUTES or name.startswith(semconv.TAG_PREFIX):
            check_value(value, _ATTRIBUTES.get(name, _TAG), f"attribute {name}")
    if span.name == semconv.REWARD_SPAN:
        reward = span.attributes.get(semconv.REWARD_VALUE)
        span.attributes[semconv.REWARD_VALUE] = reward_number(reward, f"attribute {semconv.REWARD_VALUE}")


def admit(span: Any, rollout_id: str, attempt_id: str) -> Span:
    """Return ``span`` if it is valid; else count and log it, and return the span to keep in its place."""
    try:
        if not is_instance(span, Span):
            raise BadRecord(f"a {type(span).__name__} was handed over as a span")
        if (span.rollout_id, span.attempt_id) != (rollout_id, attempt_id):
            raise BadRecord(f"the span belongs to attempt {short_repr(span.attempt_id)}, not to {attempt_id}")
        return validated(span)
    except BadRecord as bad:
        return quarantine(span, bad, rollout_id, attempt_id)


def quarantine(span: Any, bad: Exception, rollout_id: str, attempt_id: str) -> Span:
    """Count and log an invalid record, and return a span with the reason to keep in its place."""
    COUNTS.add("bad-record")
    name, given, times = None, None, (0.0, 0.0)
    if is_instance(span, Span):
        name, given, times = span.name, span.attributes, (span.start_time, span.end_time)
    log.warning("attempt %s handed over a bad record (%s): %s", attempt_id, short_repr(name), bad)
    start, end = (time if type(time) in (int, float) and 0 <= time <= 1e11 else 0.0 for time in times)
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=semconv.BAD_RECORD_SPAN,
        status="error",
        status_message=utf8_text(str(bad)),
        attributes={
            semconv.BAD_RECORD_REASON: utf8_text(str(bad)),
            semconv.BAD_RECORD_NAME: short_repr(name),
            semconv.BAD_RECORD_GIVEN: short_repr(jsonable(given)),
        },
        start_time=start,
        end_time=end,
    )


def _check_packed(value: Any, where: str) -> None:
    """Check base64 of numbers of four bytes each."""
    if not is_instance(value, str) or len(value) > LONGEST_TEXT:
        raise BadRecord(f"{where} is {short_repr(value)}, not base64 text")
    try:
        size = len(base64.b64decode(value, validate=True))
    except (ValueError, binascii.Error) as error:
        raise BadRecord(f"{where} is no base64: {error}") from None
    if size % 4:
        raise BadRecord(f"{where} holds {size} bytes, which is no whole number of 32-bit values")
