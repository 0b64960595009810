"""``POST /v1/traces``: spans of any OpenTelemetry exporter over OTLP/HTTP, stored for the attempt they name.

A span names its attempt by the attributes ``agl.rollout_id`` and ``agl.attempt_id``, or its resource does
(``OTEL_RESOURCE_ATTRIBUTES``), or the attempt's key that the request bears. A key writes to its own attempt
only.

Invariants: each span is stored or refused for itself; refused spans are reported to the exporter
(``partial_success``) and counted; a span that an exporter sends again is stored once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from aiohttp import web

from agentlightning import semconv
from agentlightning.capture.records import BadRecord, validated
from agentlightning.keys import ATTEMPT_BYTES, ByteQuota, Claims
from agentlightning.store.base import Conflict, NotFound, Store, StoreError
from agentlightning.types import Span
from agentlightning.types.base import RequestRefused
from agentlightning.webserver.body import check_container_count, decoded, read
from agentlightning.webserver.guard import JSON
from agl_cluster.store.access import StoreAccess
from agl_cluster.store.load import Load
from agl_cluster.store.outcomes import Busy

PATH: Final = "/v1/traces"
BODY_LIMIT: Final = 64 << 20
"""Bytes of one request, after decompression."""
KEY_BODY_LIMIT: Final = 16 << 20
"""The same for a request with an attempt's key: it comes from an agent, not from a runner."""
MAX_SPANS: Final = 100_000
"""Spans of one request. An empty span takes two bytes in the body and a thousand in memory."""
_SMALL_BODY: Final = 64 << 10
"""Bytes of a body that is decoded at once; a larger one is decoded in a thread, so that other requests go on.
"""
_SPANS_PER_COMMIT: Final = 128
"""Spans of one commit; other requests go on between two."""
_TYPES: Final = ("application/x-protobuf", JSON)
_CODES: Final = {400: 3, 401: 16, 403: 7, 408: 4, 409: 9, 413: 8, 415: 3, 503: 14}
"""HTTP status → code of ``google.rpc.Status``."""


class SpanStore(Protocol):
    """The part of a :class:`Store` that takes spans."""

    async def add_span(self, span: Span, *, request_id: str | None = None) -> Span: ...
    async def count(
        self,
        kind: str,
        reason: str,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        n: int = 1,
        request_id: str | None = None,
    ) -> None: ...


def add_route(app: web.Application, store: Store, access: StoreAccess, load: Load) -> None:
    """Add the route. Every role may write; a sender with the key of an attempt, to this attempt only, and
    only so many bytes.
    """
    quota = ByteQuota(ATTEMPT_BYTES)

    async def handle(request: web.Request) -> web.Response:
        try:
            caller = access.caller(request.headers.get("Authorization", ""))
            if caller.one is not None:
                raise RequestRefused(403, "foreign-route", "a token for one rollout sends no OTLP")
            with load.writing(request.content_length or 0):
                return await _ingest(request, store, caller.claims, quota)
        except RequestRefused as refused:
            return refusal_response(request, refused)
        except Busy as busy:
            return refusal_response(request, RequestRefused(503, "busy", str(busy)))

    app.router.add_post(PATH, handle)


def refusal_response(request: web.Request, refused: RequestRefused) -> web.Response:
    """Answer with a ``google.rpc.Status``, in the content type of the request."""
    from agl_cluster.store import otlp

    content_type = request.content_type if request.content_type in _TYPES else _TYPES[1]
    body = otlp.status(content_type, _CODES[refused.status], str(refused))
    headers = {"Retry-After": "1"} if refused.status == 503 else refused.headers
    return web.Response(body=body, status=refused.status, content_type=content_type, headers=headers)


async def _ingest(
    request: web.Request, store: Store, claims: Claims | None, quota: ByteQuota
) -> web.Response:
    from agl_cluster.store import otlp  # protobuf is imported on first use

    content_type = request.content_type
    if content_type not in _TYPES:
        raise RequestRefused(
            415, "unknown-type", f"Content-Type {content_type}: send one of {', '.join(_TYPES)}"
        )
    body = await read(request, BODY_LIMIT if claims is None else KEY_BODY_LIMIT)
    if claims is not None:
        await _take(store, claims, quota, len(body))
    read_spans = partial(_read_spans, content_type=content_type)
    found, damaged = await decoded(body, read_spans, _SMALL_BODY)
    refused = await store_spans(store, found, claims, damaged)
    n, why = sum(refused.values()), reasons_text(refused)
    return web.Response(body=otlp.answer(content_type, n, why), content_type=content_type)


async def _take(store: Store, claims: Claims, quota: ByteQuota, n: int) -> None:
    try:
        quota.take(claims, n)
    except RequestRefused as refused:
        rollout_id, attempt_id = claims.rollout_id, claims.attempt_id
        await store.count("refused", refused.reason, rollout_id=rollout_id, attempt_id=attempt_id)
        raise


def _read_spans(body: bytes, content_type: str) -> tuple[list[Span], int]:
    """Return the sound spans of a body and the number of damaged ones."""
    from agl_cluster.store import otlp

    if content_type == JSON:
        check_container_count(body)
    exported, damaged = otlp.decode(body, content_type)
    if (n := sum(len(one.spans) for one in exported)) > MAX_SPANS:
        raise RequestRefused(413, "too-many-spans", f"{n} spans at once: send at most {MAX_SPANS}")
    return list(otlp.spans(exported)), damaged


RefusalCounts = Counter[tuple[str, str]]
"""(Reason of the count, ``""`` if the store has counted; text for a person) → number of refused spans."""


async def store_spans(
    store: SpanStore, found: Sequence[Span], claims: Claims | None, damaged: int
) -> RefusalCounts:
    """Store each span for the attempt it names, else for that of ``claims``; count and return refused spans.
    Raise :class:`RequestRefused` with status 503 when the store cannot write.
    """
    good, refused = _split_by_attempt(found, claims)
    if damaged:
        refused["otlp-damaged-span", "they cannot be decoded"] += damaged
    refused += await _store(store, good)
    counts = [{"kind": "refused", "reason": reason, "n": n} for (reason, _), n in refused.items() if reason]
    await _batch(store, [("count", given) for given in counts])
    return refused


def _split_by_attempt(found: Sequence[Span], claims: Claims | None) -> tuple[list[Span], RefusalCounts]:
    """Return the spans that may be written to the attempt they name, and the refusals of the others."""
    good, refused = [], RefusalCounts()
    for span in found:
        own = {**span.resource, **span.attributes}
        rollout, attempt = own.get(semconv.ROLLOUT_ID), own.get(semconv.ATTEMPT_ID)
        if claims is not None:
            rollout, attempt = rollout or claims.rollout_id, attempt or claims.attempt_id
        if len(span.trace_id) != 32 or len(span.span_id) != 16:
            refused["otlp-bad-id", "trace ids have 16 bytes and span ids 8"] += 1
        elif not (isinstance(rollout, str) and isinstance(attempt, str) and rollout and attempt):
            say = f"neither span nor resource names {semconv.ROLLOUT_ID} and {semconv.ATTEMPT_ID}"
            refused["otlp-no-attempt", say] += 1
        elif claims is not None and (rollout, attempt) != (claims.rollout_id, claims.attempt_id):
            say = f"the key is that of attempt {claims.attempt_id}, not of {attempt}"
            refused["otlp-foreign-attempt", say] += 1
        else:
            span.rollout_id, span.attempt_id = rollout, attempt
            try:
                good.append(validated(span))
            except BadRecord as bad:
                refused["otlp-bad-span", str(bad)] += 1
    return good, refused


async def _store(store: SpanStore, spans: Sequence[Span]) -> RefusalCounts:
    """Store spans, each under a request id of its own; return the refusals."""
    calls = [("add_span", {"span": s, "request_id": _request_id(s)}) for s in spans]
    refused = RefusalCounts()
    for start in range(0, len(calls), _SPANS_PER_COMMIT):
        outcomes = await _batch(store, calls[start : start + _SPANS_PER_COMMIT])
        refused.update(_reason(found) for found in outcomes if isinstance(found, Exception))
    return refused


def _request_id(s: Span) -> str:
    return f"otlp:{s.rollout_id}:{s.attempt_id}:{s.trace_id}:{s.span_id}"


def _reason(error: Exception) -> tuple[str, str]:
    if isinstance(error, NotFound):
        return "otlp-unknown-attempt", str(error)
    if isinstance(error, Conflict):
        return "", str(error)
    if isinstance(error, StoreError):
        raise RequestRefused(503, "store-failed", str(error))
    return "otlp-bad-span", str(error)


async def _batch(store: SpanStore, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return a result or an error for each call. A store with ``batch`` makes one commit."""
    batch = getattr(store, "batch", None)
    try:
        if batch is not None:
            return list(await batch(calls)) if calls else []
        return [await _result_or_error(getattr(store, method)(**given)) for method, given in calls]
    except StoreError as error:
        raise RequestRefused(503, "store-failed", str(error)) from None


async def _result_or_error(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except Exception as error:
        return error


def reasons_text(refused: RefusalCounts) -> str:
    """Return the three most frequent reasons as text."""
    told = [f"{n}: {say}" for (_, say), n in refused.most_common(3)]
    return "; ".join(told + ([f"{len(refused) - 3} more reasons"] if len(refused) > 3 else []))
