"""The caller of a request: the attempt behind its key, and its place in the agent's trace.

Invariant: the attempt is the key's. Headers may add to what the key says, never contradict it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

import msgspec

from agentlightning.gateway.errors import RequestRefused
from agentlightning.keys import CONTEXT_KEY, PREFIX, Claims, Keys
from agentlightning.semconv import (
    BAGGAGE_PREFIX,
    HEADER_ATTEMPT,
    HEADER_POLICY,
    HEADER_SELECTED,
    HEADER_TAGS,
    HEADER_TRACE,
)
from agentlightning.types import Tags, merge_tags

RETRY_HEADER = "x-stainless-retry-count"
"""The openai SDK counts its retries here."""
_HEX = frozenset("0123456789abcdef")
_tags_decoder = msgspec.json.Decoder(dict[str, str | int | float | bool | None])


class RequestIdentity(msgspec.Struct, kw_only=True, frozen=True):
    """The attempt that a request belongs to, and its place in the caller's trace."""

    claims: Claims
    tags: Tags = {}
    policy: str | None = None
    """Policy that the agent's SDK patch asks for."""
    selected: bool = True
    """Whether the class that makes the call trains it (``@agl.agent(select=…)``)."""
    trace_id: str | None = None
    span_id: str | None = None
    retry: int = 0


def identify(headers: Mapping[str, str], keys: Keys) -> RequestIdentity:
    """The caller of a request. :class:`RequestRefused`: 400 header, 401 no valid key, 409 ended, conflict."""
    key, other = _presented(headers)
    claims = _claims(key, keys)
    try:
        _check_same(claims, HEADER_ATTEMPT, headers.get(HEADER_ATTEMPT))
        if other:
            _check_same(claims, "x-api-key", _attempt_of(other, keys))
        trace_id, span_id = _traceparent(headers.get(HEADER_TRACE) or headers.get("traceparent"))
        return RequestIdentity(
            claims=claims,
            tags=merge_tags(_baggage_tags(headers.get("baggage", "")), _tags(headers.get(HEADER_TAGS))),
            policy=headers.get(HEADER_POLICY),
            selected=_selected(headers.get(HEADER_SELECTED)),
            trace_id=trace_id,
            span_id=span_id,
            retry=_retry(headers.get(RETRY_HEADER)),
        )
    except RequestRefused as refused:
        raise refused.of(claims) from None


def _presented(headers: Mapping[str, str]) -> tuple[str, str]:
    """The key of a request, as OpenAI's SDK or Anthropic's sends it, and a second key of ours, or ``""``.

    Where both headers are there, a key of ours goes before any other.
    """
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    if (other := headers.get("x-api-key", "").strip()) in ("", bearer):
        return bearer, ""
    ours = [key for key in (bearer, other) if key.startswith(PREFIX) and key != CONTEXT_KEY]
    if not ours:
        return (CONTEXT_KEY if CONTEXT_KEY in (bearer, other) else bearer or other), ""
    return ours[0], ours[1] if len(ours) > 1 else ""


def _attempt_of(key: str, keys: Keys) -> str | None:
    """The attempt of a key, valid still or not; ``None`` for no key of ours."""
    try:
        return keys.check(key).attempt_id
    except RequestRefused as refused:
        return refused.claims.attempt_id if refused.claims else None
    except msgspec.DecodeError:
        return None


def _check_same(claims: Claims, header: str, attempt: str | None) -> None:
    """A request belongs to one attempt: :class:`RequestRefused` 409 where ``header`` names another."""
    if attempt is not None and attempt != claims.attempt_id:
        raise RequestRefused(
            409,
            "conflicting-identity",
            f"the key is of attempt {claims.attempt_id}, the header {header} says {attempt!r}: "
            "the client was made for another rollout; use the attempt's own key or the placeholder key",
        )


def _claims(key: str, keys: Keys) -> Claims:
    if not key:
        message = "no key: send `Authorization: Bearer <the attempt's key>`, or it as `x-api-key`"
        raise RequestRefused(401, "no-key", message)
    if key == CONTEXT_KEY:
        raise RequestRefused(
            401,
            "placeholder-key",
            f"the client holds the placeholder key {CONTEXT_KEY!r} and no attempt's key was put in its "
            "place: make the call inside a rollout, with the SDK instrumented",
        )
    try:
        return keys.check(key)
    except msgspec.DecodeError:  # signed with our secret, by another version of this package
        message = "the key's claims cannot be read: it was minted by another version"
        raise RequestRefused(401, "unknown-key", message) from None


def _bad_header(header: str, problem: str) -> RequestRefused:
    return RequestRefused(400, "bad-header", f"header {header} is {problem}")


@lru_cache(maxsize=4096)
def _read_tags(value: str) -> Tags:
    """Tags of a header, which hardly changes from call to call. Not to be mutated."""
    return merge_tags(_tags_decoder.decode(unquote(value)))


def _tags(value: str | None) -> Tags:
    if value is None:
        return {}
    try:
        return _read_tags(value)
    except msgspec.DecodeError as error:
        raise _bad_header(HEADER_TAGS, f"not a URL-quoted JSON object of plain values: {error}") from None


@lru_cache(maxsize=4096)
def _baggage_tags(value: str) -> Tags:
    """Tags among the entries of a W3C ``baggage`` header, which OpenTelemetry's propagators send."""
    entries = (entry.partition(";")[0].partition("=") for entry in value.split(","))
    start = len(BAGGAGE_PREFIX)
    return {
        unquote(name.strip()[start:]): unquote_plus(tag.strip())
        for name, _, tag in entries
        if name.strip().startswith(BAGGAGE_PREFIX)
    }


def _selected(value: str | None) -> bool:
    if value in (None, "1", "0"):
        return value != "0"
    raise _bad_header(HEADER_SELECTED, f"{value[:40]!r}, neither 0 nor 1")


def _retry(value: str | None) -> int:
    if value is None:
        return 0
    if value.isascii() and value.isdigit() and len(value) < 6:
        return int(value)
    raise _bad_header(RETRY_HEADER, f"{value[:40]!r}, not a small number")


def _traceparent(value: str | None) -> tuple[str | None, str | None]:
    """Trace and span id of a W3C ``traceparent``. A malformed one is ignored, as the specification asks."""
    parts = (value or "").strip().split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return None, None
    if not _HEX.issuperset(parts[1] + parts[2]) or not parts[1].strip("0") or not parts[2].strip("0"):
        return None, None
    return parts[1], parts[2]
