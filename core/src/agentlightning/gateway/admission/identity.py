"""Who is asking: the attempt behind a key, and what the wire layer's headers say about the call.

Invariant: the attempt is the key's. Headers may add to what the key says, never contradict it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote

import msgspec

from agentlightning.gateway.errors import RequestRefused
from agentlightning.keys import CONTEXT_KEY, PREFIX, Claims, KeyRefused, Keys
from agentlightning.semconv import HEADER_ATTEMPT, HEADER_POLICY, HEADER_SELECTED, HEADER_TAGS, HEADER_TRACE
from agentlightning.types import Tags, merge_tags

_HEX = frozenset("0123456789abcdef")
_tags_decoder = msgspec.json.Decoder(dict[str, str | int | float | bool | None])


@lru_cache(maxsize=4096)
def _read_tags(value: str) -> Tags:
    """Tags of a header, which hardly changes from call to call. Not to be mutated."""
    return merge_tags(_tags_decoder.decode(unquote(value)))


class Caller(msgspec.Struct, kw_only=True, frozen=True):
    """The attempt that a request speaks for, and its place in the caller's trace."""

    claims: Claims
    tags: Tags = {}
    policy: str | None = None
    """Policy that the wire layer asks for."""
    selected: bool = True
    """Whether the class that makes the call trains it (``@agl.agent(select=…)``)."""
    trace_id: str | None = None
    span_id: str | None = None
    retry: int = 0


def identify(headers: Mapping[str, str], keys: Keys) -> Caller:
    """The caller of a request. :class:`RequestRefused`: 400 header, 401 no valid key, 409 ended, conflict."""
    key, other = _presented(headers)
    claims = _claims(key, keys)
    _check_alone(claims, HEADER_ATTEMPT, headers.get(HEADER_ATTEMPT))
    if other:
        _check_alone(claims, "x-api-key", _attempt_of(other, keys))
    trace_id, span_id = _traceparent(headers.get(HEADER_TRACE) or headers.get("traceparent"))
    return Caller(
        claims=claims,
        tags=_tags(headers.get(HEADER_TAGS), claims),
        policy=headers.get(HEADER_POLICY),
        selected=_selected(headers.get(HEADER_SELECTED), claims),
        trace_id=trace_id,
        span_id=span_id,
        retry=_retry(headers.get("x-stainless-retry-count"), claims),
    )


def _presented(headers: Mapping[str, str]) -> tuple[str, str]:
    """The key of a request, as OpenAI's SDK sends it or as Anthropic's does: ours, where both are there. With
    it, another one of ours.
    """
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    if (other := headers.get("x-api-key", "").strip()) in ("", bearer):
        return bearer, ""
    found = [key for key in (bearer, other) if key.startswith(PREFIX) and key != CONTEXT_KEY]
    if not found:
        return (CONTEXT_KEY if CONTEXT_KEY in (bearer, other) else bearer or other), ""
    return found[0], found[1] if len(found) > 1 else ""


def _attempt_of(key: str, keys: Keys) -> str | None:
    """Whose key it is, valid still or not; ``None`` for no key of ours."""
    try:
        return keys.check(key).attempt_id
    except KeyRefused as refused:
        return refused.claims.attempt_id if refused.claims else None
    except msgspec.DecodeError:
        return None


def _check_alone(claims: Claims, header: str, attempt: str | None) -> None:
    """A request belongs to one attempt: :class:`RequestRefused` 409 where ``header`` says another."""
    if attempt is not None and attempt != claims.attempt_id:
        raise RequestRefused(
            409,
            "conflicting-identity",
            f"the key is of attempt {claims.attempt_id}, the header {header} says {attempt!r}: "
            "the client was made for another rollout; use the attempt's own key or the placeholder key",
            rollout_id=claims.rollout_id,
            attempt_id=claims.attempt_id,
        )


def _claims(key: str, keys: Keys) -> Claims:
    if not key:
        raise RequestRefused(
            401, "no-key", "no key: send `Authorization: Bearer <the attempt's key>`, or it as `x-api-key`"
        )
    if key == CONTEXT_KEY:
        raise RequestRefused(
            401,
            "placeholder-key",
            f"the client holds the placeholder key {CONTEXT_KEY!r} and no attempt's key was put in its "
            "place: make the call inside a rollout, with the wire layer instrumented",
        )
    try:
        return keys.check(key)
    except KeyRefused as refused:
        # A revoked key is signed all the same: its claims say in whose ledger the late call belongs.
        late = refused.claims
        raise RequestRefused(
            refused.status,
            refused.reason,
            str(refused),
            rollout_id=late.rollout_id if late else None,
            attempt_id=late.attempt_id if late else None,
        ) from None
    except (
        msgspec.DecodeError
    ):  # the signature holds, so the secret is shared with another version of the key
        raise RequestRefused(
            401, "unknown-key", "the key's claims cannot be read: it was minted by another version"
        ) from None


def _tags(value: str | None, claims: Claims) -> Tags:
    if value is None:
        return {}
    try:
        return _read_tags(value)
    except msgspec.DecodeError as error:
        raise RequestRefused(
            400,
            "bad-header",
            f"header {HEADER_TAGS} is not a URL-quoted JSON object of plain values: {error}",
            rollout_id=claims.rollout_id,
            attempt_id=claims.attempt_id,
        ) from None


def _selected(value: str | None, claims: Claims) -> bool:
    if value in (None, "1", "0"):
        return value != "0"
    raise RequestRefused(
        400,
        "bad-header",
        f"header {HEADER_SELECTED} is {value[:40]!r}, neither 0 nor 1",
        rollout_id=claims.rollout_id,
        attempt_id=claims.attempt_id,
    )


def _retry(value: str | None, claims: Claims) -> int:
    if value is None:
        return 0
    if value.isascii() and value.isdigit() and len(value) < 6:
        return int(value)
    raise RequestRefused(
        400,
        "bad-header",
        f"header x-stainless-retry-count is {value[:40]!r}, not a small number",
        rollout_id=claims.rollout_id,
        attempt_id=claims.attempt_id,
    )


def _traceparent(value: str | None) -> tuple[str | None, str | None]:
    """Trace and span id of a W3C ``traceparent``. A malformed one is ignored, as the specification asks."""
    if value is None:
        return None, None
    parts = value.strip().split("-")
    if (
        len(parts) < 4
        or len(parts[1]) != 32
        or len(parts[2]) != 16
        or not _HEX.issuperset(parts[1] + parts[2])
    ):
        return None, None
    if not parts[1].strip("0") or not parts[2].strip("0"):
        return None, None
    return parts[1], parts[2]
