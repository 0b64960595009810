"""The caller of a request: the attempt behind its key, and its place in the agent's trace.

Invariant: the attempt is the key's. Headers may add to what the key says, never contradict it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_plus

import msgspec
from aiohttp import web

from agentlightning.gateway.answer import DECODE_ERRORS
from agentlightning.gateway.errors import RequestRefused
from agentlightning.keys import CONTEXT_KEY, PREFIX, Claims, Keys
from agentlightning.semconv import (
    BAGGAGE_PREFIX,
    HEADER_AGENT,
    HEADER_ATTEMPT,
    HEADER_POLICY,
    HEADER_SELECTED,
    HEADER_TAGS,
    HEADER_TRACE,
)
from agentlightning.types import Tags, merge_tags
from agentlightning.webserver.body import (
    MAX_DEPTH,
    NotPlain,
    check_container_count,
    check_plain,
    decoded,
    read,
)

RETRY_HEADER = "x-stainless-retry-count"
"""The openai SDK counts its retries here."""
_TRACEPARENT = re.compile(r"\s*[^-]*-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-")
"""W3C Trace Context, section 3.2: version, trace id, parent id, flags."""
_tags_decoder = msgspec.json.Decoder(dict[str, str | int | float | bool | None])


class RequestIdentity(msgspec.Struct, kw_only=True, frozen=True):
    """The attempt that a request belongs to, and its place in the caller's trace."""

    claims: Claims
    tags: Tags = {}
    policy: str | None = None
    """The policy that the instrumented SDK asks for."""
    selected: bool = True
    """Whether the class that makes the call trains it (``@agl.agent(select=…)``)."""
    trace_id: str | None = None
    span_id: str | None = None
    retry: int = 0


def identify(headers: Mapping[str, str], keys: Keys) -> RequestIdentity:
    """The caller of a request. Raise :class:`RequestRefused`: 400 for a bad header, 401 without a valid key,
    409 after the attempt's end and for contradictions.
    """
    key, other = _presented(headers)
    claims = _claims(key, keys)
    try:
        _check_same(claims, HEADER_ATTEMPT, headers.get(HEADER_ATTEMPT))
        if other:
            try:
                also: Claims | None = _claims(other, keys)
            except RequestRefused as refused:
                also = refused.claims
            _check_same(claims, "x-api-key", also.attempt_id if also else None)
        # A malformed traceparent is ignored, as the specification asks.
        trace = _TRACEPARENT.match(headers.get(HEADER_TRACE) or headers.get("traceparent", ""))
        return RequestIdentity(
            claims=claims,
            tags=header_tags(headers),
            policy=headers.get(HEADER_POLICY),
            selected=_selected(headers.get(HEADER_SELECTED)),
            trace_id=trace and trace[1],
            span_id=trace and trace[2],
            retry=_retry(headers.get(RETRY_HEADER)),
        )
    except RequestRefused as refused:
        raise refused.of(claims) from None


def _presented(headers: Mapping[str, str]) -> tuple[str, str]:
    """The key of a request, as OpenAI's SDK, Anthropic's or Azure's sends it, and a second key of ours, or
    ``""``.

    Of two keys, one of ours goes before any other.
    """
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    if (other := (headers.get("x-api-key") or headers.get("api-key", "")).strip()) in ("", bearer):
        return bearer, ""
    ours = [key for key in (bearer, other) if key.startswith(PREFIX) and key != CONTEXT_KEY]
    if not ours:
        return (CONTEXT_KEY if CONTEXT_KEY in (bearer, other) else bearer or other), ""
    return ours[0], ours[1] if len(ours) > 1 else ""


def _check_same(claims: Claims, header: str, attempt: str | None) -> None:
    """Raise :class:`RequestRefused` 409 when ``header`` names another attempt than the key."""
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


def header_tags(headers: Mapping[str, str]) -> Tags:
    """Return the tags that a request's headers give. Raise :class:`RequestRefused` 400 for a bad header."""
    return dict(_tags(headers.get(HEADER_TAGS), headers.get(HEADER_AGENT), headers.get("baggage")))


@lru_cache(maxsize=4096)
def _tags(value: str | None, agent: str | None, baggage: str | None) -> Tags:
    """The tags of a request: from W3C ``baggage``, which OpenTelemetry's propagators send; over these the
    agent's name, which any client can send; over both our own header. All requests with these headers share
    the result: do not mutate it.
    """
    entries = (entry.partition(";")[0].strip().partition("=") for entry in (baggage or "").split(","))
    tags = {
        unquote(name.rstrip().removeprefix(BAGGAGE_PREFIX)): unquote_plus(tag.strip())
        for name, _, tag in entries
        if name.startswith(BAGGAGE_PREFIX)
    }
    if agent and (name := unquote(agent).strip()):
        tags["agent"] = name
    try:
        return merge_tags(tags, _tags_decoder.decode(unquote("{}" if value is None else value)))
    except msgspec.DecodeError as error:
        raise _bad_header(HEADER_TAGS, f"not a URL-quoted JSON object of plain values: {error}") from None


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


MAX_CHOICES = 1024
"""Choices of one request at most: engines sample all of them, and each is a record."""
_bodies = msgspec.json.Decoder(dict[str, Any])


async def read_json(request: web.Request, limit: int, take: Callable[[int], None]) -> dict[str, Any]:
    """Read the JSON object of a request's body. Raise :class:`RequestRefused` when the body is larger than
    ``limit`` bytes, contradicts its headers, or is no JSON object. ``take`` is told its bytes
    and may refuse.
    """
    raw = await read(request, limit)
    take(len(raw))
    check_container_count(raw)
    return await decoded(raw, decode_json)


def decode_json(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise :class:`RequestRefused` for anything else, and for too many choices."""
    try:
        body = _bodies.decode(raw)
        if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:  # fewer cannot be nested more deeply
            check_plain(body)
    except (*DECODE_ERRORS, NotPlain) as error:
        raise RequestRefused(400, "bad-body", f"the request's body is not a JSON object: {error}") from None
    if (n := choice_count(body)) > MAX_CHOICES:
        message = f"{n} choices were asked for: at most {MAX_CHOICES} at once"
        raise RequestRefused(400, "too-many-choices", message)
    return body


def choice_count(body: Mapping[str, Any]) -> int:
    """Number of choices that a request asks for: ``n`` for each prompt."""
    n, prompt = body.get("n"), body.get("prompt")
    if isinstance(n, float | str):  # engines that coerce take 2.0 and "2" for 2
        n = int(n) if str(n).removesuffix(".0").isdecimal() and len(str(n)) < 9 else 1
    each = n if isinstance(n, int) and n > 0 else 1
    many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return each * (len(prompt) if many and isinstance(prompt, list) else 1)
