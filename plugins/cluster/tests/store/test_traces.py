"""OTLP/HTTP: a stock exporter, JSON by hand, keys, refusals, and what is no export request."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import zlib
from typing import Any

import aiohttp
import pytest
from contract.store import Clock
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.records import convert
from agentlightning.credit.rewards import resolve
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.store.base import StoreError
from agentlightning.types import AttemptedRollout, AttemptStatus, Span
from agl_cluster.store import traces
from agl_cluster.store.server import ServedStore, start

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SECRET = "0123456789abcdef0123456789abcdef"


def owner(lease: AttemptedRollout) -> dict[str, str]:
    return {semconv.ROLLOUT_ID: lease.rollout.rollout_id, semconv.ATTEMPT_ID: lease.attempt.attempt_id}


def make(resource: dict[str, Any], attributes: dict[str, Any], n: int = 1) -> list[ReadableSpan]:
    """Finished spans of the SDK, a parent with ``n`` children."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource(resource))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("parent", attributes=attributes) as parent:
        for i in range(n):
            link = Link(parent.get_span_context(), {"why": "test"})
            with tracer.start_as_current_span(
                "tool",
                kind=SpanKind.CLIENT,
                links=[link],
                attributes={
                    **attributes,
                    "i": i,
                    "f": 0.5,
                    "b": True,
                    "list": ["x", "y"],
                    "api": "agl-" + "k" * 50,
                },
            ) as span:
                span.add_event("said", {"text": "hello"})
                span.set_status(Status(StatusCode.ERROR, "broke"))
    return list(memory.get_finished_spans())


def exporter(served: ServedStore, **options: Any) -> OTLPSpanExporter:
    return OTLPSpanExporter(endpoint=f"{served.url}/v1/traces", timeout=30, **options)


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("where", ["resource", "span"])
async def test_a_stock_exporter_says_what_capture_says(
    served: ServedStore, compression: Compression, where: str
) -> None:
    lease = await served.store.start_rollout(1)
    own = owner(lease)
    given = make(own if where == "resource" else {}, own if where == "span" else {})
    export = exporter(served, compression=compression)
    for _ in range(2):  # the second is an exporter's retry
        assert await asyncio.to_thread(export.export, given) is SpanExportResult.SUCCESS
    stored = await served.store.query_spans(lease.rollout.rollout_id)
    context = AttemptContext(lease.rollout.rollout_id, lease.attempt.attempt_id, sink=lambda span: None)
    expected = [convert(span, context) for span in given]
    for number, span in enumerate(expected, 1):
        span.sequence_id = number
    assert stored == expected and "agl-***" in stored[0].attributes["api"]
    export.shutdown()


def by_hand(lease: AttemptedRollout | None, n: int = 1, **fields: Any) -> dict[str, Any]:
    """An export request as the JSON of the specification has it."""
    attributes = (
        []
        if lease is None
        else [{"key": key, "value": {"stringValue": value}} for key, value in owner(lease).items()]
    )
    spans = [
        {
            "traceId": "5B8EFFF798038103D269B633813FC60C",
            "spanId": f"EEE19B7EC3C1{i:04X}",
            "name": f"s{i}",
            "kind": 2,
            "startTimeUnixNano": "1544712660000000000",
            "endTimeUnixNano": "1544712661500000000",
            "attributes": attributes,
            **fields,
        }
        for i in range(n)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "by.hand"}, "spans": spans}]}]}


async def post(
    http: aiohttp.ClientSession, body: Any, content_type: str = JSON, **headers: str
) -> tuple[int, Any]:
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post("/v1/traces", data=data, headers={"Content-Type": content_type, **named}) as found:
        assert found.content_type == (content_type if content_type in (PROTOBUF, JSON) else JSON)
        content = await found.read()
        return found.status, content if found.content_type == PROTOBUF else json.loads(content)


async def test_json_with_every_kind_of_value(http: aiohttp.ClientSession, sqlite: SQLiteStore) -> None:
    lease = await sqlite.start_rollout(1)
    body = by_hand(lease, parentSpanId="EEE19B7EC3C1FFFF", status={"code": 2, "message": "no"}, surprise=[1])
    nested = {"kvlistValue": {"values": [{"key": "n", "value": {"intValue": "9007199254740993"}}]}}
    body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] += [
        {"key": "int", "value": {"intValue": 7}},
        {"key": "double", "value": {"doubleValue": 0.25}},
        {"key": "nan", "value": {"doubleValue": "NaN"}},
        {"key": "bytes", "value": {"bytesValue": base64.b64encode(b"\x00\xff").decode()}},
        {"key": "deep", "value": {"arrayValue": {"values": [nested, {"boolValue": True}, {}]}}},
        {"key": "none", "value": {}},
    ]
    body["resourceSpans"][0]["resource"] = {"attributes": [{"key": "service", "value": {"stringValue": "s"}}]}
    assert await post(http, body) == (200, {})
    (span,) = await sqlite.query_spans(lease.rollout.rollout_id)
    assert (span.trace_id, span.span_id) == ("5b8efff798038103d269b633813fc60c", "eee19b7ec3c10000")
    assert (span.parent_id, span.kind, span.status, span.status_message) == (
        "eee19b7ec3c1ffff",
        "server",
        "error",
        "no",
    )
    assert (span.start_time, span.end_time, span.resource) == (1544712660.0, 1544712661.5, {"service": "s"})
    assert {k: v for k, v in span.attributes.items() if not k.startswith("agl.")} == {
        "int": 7,
        "double": 0.25,
        "nan": "nan",
        "bytes": "AP8=",
        "deep": [{"n": 9007199254740993}, True, None],
        "none": None,
    }


async def test_refused_spans_are_told_and_counted_and_the_others_stored(
    http: aiohttp.ClientSession, sqlite: SQLiteStore, clock: Clock
) -> None:
    alive, ended = await sqlite.start_rollout(1), await sqlite.start_rollout(2)
    await sqlite.update_attempt(*owner(ended).values(), AttemptStatus.FAILED)
    unknown = by_hand(alive)
    unknown["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"][0]["value"]["stringValue"] = "ro-x"
    parts = [by_hand(alive, 2), by_hand(ended), by_hand(None, 3), unknown, by_hand(alive, spanId="EEE1")]
    body = {"resourceSpans": [p["resourceSpans"][0] for p in parts]}
    status, answer = await post(http, body)
    partial = answer["partialSuccess"]
    assert (status, partial["rejectedSpans"]) == (200, "6")
    assert partial["errorMessage"].startswith("3: neither span nor resource names agl.rollout_id")
    assert "1 more reasons" in partial["errorMessage"]
    assert [s.name for s in await sqlite.query_spans(alive.rollout.rollout_id)] == ["s0", "s1"]
    assert (await sqlite.counts())["refused"] == {
        "otlp-no-attempt": 3,
        "otlp-unknown-attempt": 1,
        "otlp-bad-id": 1,
        "spans-after-failed": 1,
    }
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(name="x", trace_id=b"t" * 16, span_id=b"s" * 8)
    status, answer = await post(http, request.SerializeToString(), PROTOBUF)
    response = ExportTraceServiceResponse.FromString(answer)
    assert status == 200 and response.partial_success.rejected_spans == 1


GARBAGE: dict[str, tuple[bytes, str, dict[str, str], int]] = {
    "no protobuf": (b"\xff\xff\xff", PROTOBUF, {}, 400),
    "half a protobuf": (b"\x0a\x50abc", PROTOBUF, {}, 400),
    "half JSON": (b'{"resourceSpans": [', JSON, {}, 400),
    "a list": (b"[1]", JSON, {}, 400),
    "null": (b"null", JSON, {}, 400),
    "not UTF-8": (b'"\xff\xfe"', JSON, {}, 400),
    "wrong types": (b'{"resourceSpans": [3]}', JSON, {}, 400),
    "an id that is no hex": (json.dumps(by_hand(None, traceId="xyz")).encode(), JSON, {}, 400),
    "too deep": (b'{"a":' * 100_000, JSON, {}, 400),
    "deep values": (
        b'{"resourceSpans":[{"resource":{"attributes":[{"key":"k","value":'
        + b'{"arrayValue":{"values":[' * 200
        + b"]}}" * 200
        + b"}]}}]}",
        JSON,
        {},
        400,
    ),
    "no gzip": (b"plain", PROTOBUF, {"Content_Encoding": "gzip"}, 400),
    "half a gzip": (gzip.compress(b"x" * 1000)[:-9], PROTOBUF, {"Content_Encoding": "gzip"}, 400),
    "two parts, the second broken": (
        gzip.compress(b"") + gzip.compress(b"x")[:-1],
        PROTOBUF,
        {"Content_Encoding": "gzip"},
        400,
    ),
    "another type": (b"x", "text/plain", {}, 415),
    "another encoding": (b"x", PROTOBUF, {"Content_Encoding": "snappy"}, 415),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_refused_with_the_reason(
    http: aiohttp.ClientSession, sqlite: SQLiteStore, name: str
) -> None:
    body, content_type, headers, expected = GARBAGE[name]
    status, answer = await post(http, body, content_type, **headers)
    assert status == expected
    if isinstance(answer, bytes):
        assert answer[:3] == b"\x08\x03\x12" and len(answer) > 10  # google.rpc.Status: a code and a message
    else:
        assert answer["code"] == 3 and answer["message"]
    assert (await sqlite.statistics())["spans"] == 0


DAMAGED = [
    {"traceId": "xyz"},
    {"startTimeUnixNano": "yesterday"},
    {"attributes": [{"key": 3}]},
    {"links": [7]},
    {"name": {"not": "text"}},
]


@pytest.mark.parametrize("damage", [*DAMAGED, None], ids=str)
async def test_a_damaged_span_is_lost_alone(
    http: aiohttp.ClientSession, sqlite: SQLiteStore, damage: dict[str, Any] | None
) -> None:
    lease = await sqlite.start_rollout(1)
    body = by_hand(lease, 3)
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans[1] = 3 if damage is None else {**spans[1], **damage}
    status, answer = await post(http, body)
    assert (status, answer["partialSuccess"]["rejectedSpans"]) == (200, "1")
    assert [s.name for s in await sqlite.query_spans(lease.rollout.rollout_id)] == ["s0", "s2"]
    assert (await sqlite.counts())["refused"] == {"otlp-damaged-span": 1}


async def test_a_damaged_span_of_protobuf_is_lost_alone(
    http: aiohttp.ClientSession, sqlite: SQLiteStore
) -> None:
    lease = await sqlite.start_rollout(1)
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for key, value in owner(lease).items():
        resource.resource.attributes.add(key=key).value.string_value = value
    scope = resource.scope_spans.add()
    for number in range(300):
        scope.spans.add(name=f"span-{number:03}", trace_id=b"t" * 16, span_id=number.to_bytes(8, "big"))
    body = request.SerializeToString().replace(
        b"span-007", b"sp\xff\xfe-007"
    )  # no UTF-8: protobuf refuses it
    with pytest.raises(DecodeError):
        ExportTraceServiceRequest.FromString(body)
    status, answer = await post(http, body, PROTOBUF)
    assert status == 200
    assert ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans == 1
    stored = [s.name for s in await sqlite.query_spans(lease.rollout.rollout_id)]
    assert stored == [f"span-{number:03}" for number in range(300) if number != 7]


@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
async def test_what_is_too_large_after_decompression_is_refused(
    http: aiohttp.ClientSession, sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(traces, "BODY_LIMIT", 1 << 20)
    bomb = b" " * (8 << 20)
    packed = {"identity": bomb, "gzip": gzip.compress(bomb), "deflate": zlib.compress(bomb)}[encoding]
    status, answer = await post(http, packed, JSON, Content_Encoding=encoding)
    assert (status, answer["code"]) == (413, 8) and "1 MiB" in answer["message"]


async def test_many_exporters_at_once_store_each_span_once(served: ServedStore) -> None:
    lease = await served.store.start_rollout(1)
    batches = [make(owner(lease), {}, n=30) for _ in range(4)]
    exporters = [exporter(served, compression=Compression.Gzip) for _ in range(8)]
    found = await asyncio.gather(
        *(asyncio.to_thread(e.export, batches[i % 4]) for i, e in enumerate(exporters))  # each batch twice
    )
    assert set(found) == {SpanExportResult.SUCCESS}
    stored = await served.store.query_spans(lease.rollout.rollout_id)
    assert len(stored) == 4 * 31 == len({(s.trace_id, s.span_id) for s in stored})
    assert sorted(s.sequence_id for s in stored) == list(range(1, 125))
    for e in exporters:
        e.shutdown()


async def test_a_large_batch_goes_in_pieces(http: aiohttp.ClientSession, sqlite: SQLiteStore) -> None:
    lease = await sqlite.start_rollout(1)
    assert await post(http, by_hand(lease, 1000)) == (200, {})
    assert len(await sqlite.query_spans(lease.rollout.rollout_id)) == 1000


async def test_an_exporter_waits_for_a_store_that_cannot_write(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await served.store.start_rollout(1)
    batch, failures = served.store.batch, [StoreError("the disk is full")]

    async def full(*given: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await batch(*given, **named)

    monkeypatch.setattr(served.store, "batch", full)
    export = exporter(served)
    assert await asyncio.to_thread(export.export, make(owner(lease), {})) is SpanExportResult.SUCCESS
    assert not failures and len(await served.store.query_spans(lease.rollout.rollout_id)) == 2
    export.shutdown()


async def test_a_key_speaks_for_its_own_attempt(sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET)
    keys, mine, other = Keys(SECRET.encode()), await sqlite.start_rollout(1), await sqlite.start_rollout(2)
    key = keys.mint(mine.rollout.rollout_id, mine.attempt.attempt_id)
    late = keys.mint(mine.rollout.rollout_id, mine.attempt.attempt_id, ttl=-1.0)
    served = await start(sqlite, port=0, token="s3cret")
    async with aiohttp.ClientSession(served.url) as http:
        assert await post(http, by_hand(None, 2), Authorization=f"Bearer {key}") == (200, {})
        status, answer = await post(http, by_hand(other), Authorization=f"Bearer {key}")
        assert (status, answer["partialSuccess"]["rejectedSpans"]) == (200, "1")
        assert (
            f"the key is that of attempt {mine.attempt.attempt_id}"
            in answer["partialSuccess"]["errorMessage"]
        )
        assert await post(http, by_hand(other), Authorization="Bearer s3cret") == (200, {})
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": f"Bearer {late}"}):
            status, answer = await post(http, by_hand(other), **wrong)
            assert (status, answer["code"]) == (401, 16)
        forged = Keys(b"another secret of 32 bytes......").mint("a", "b")
        assert (await post(http, by_hand(mine), Authorization=f"Bearer {forged}"))[0] == 401
    assert [len(await sqlite.query_spans(x.rollout.rollout_id)) for x in (mine, other)] == [2, 1]
    assert await sqlite.counts() == {"refused": {"otlp-foreign-attempt": 1}}
    await served.close()


async def test_a_key_sends_so_many_bytes(sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET)
    monkeypatch.setattr(traces, "ATTEMPT_BYTES", 1_500)
    mine = await sqlite.start_rollout(1)
    key = Keys(SECRET.encode()).mint(mine.rollout.rollout_id, mine.attempt.attempt_id)
    served = await start(sqlite, port=0, token="s3cret")
    async with aiohttp.ClientSession(served.url) as http:
        codes = [(await post(http, by_hand(None, n), Authorization=f"Bearer {key}"))[0] for n in (1, 9, 9)]
        assert codes[0] == 200 and codes[-1] == 413
        assert (await post(http, by_hand(mine, 9), Authorization="Bearer s3cret"))[0] == 200
    refused = (await sqlite.counts(mine.rollout.rollout_id))["refused"]
    assert refused == {"attempt-bytes": codes.count(413)}
    await served.close()


async def test_a_key_that_cannot_be_checked_is_refused(http: aiohttp.ClientSession) -> None:
    key = Keys().mint("ro", "at")
    status, answer = await post(http, by_hand(None), Authorization=f"Bearer {key}")
    assert status == 401 and "AGL_SECRET" in answer["message"]


async def test_a_key_gives_no_reward_but_its_own_and_none_after_the_returned_one(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that writes to the store by itself, with a clock that says 2096."""
    monkeypatch.setenv("AGL_SECRET", SECRET)
    lease, other = await sqlite.start_rollout(1), await sqlite.start_rollout(2)
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    served = await start(sqlite, port=0, token="s3cret")
    bearer = {"Authorization": f"Bearer {Keys(SECRET.encode()).mint(*ids)}"}

    def body(value: float, of: AttemptedRollout, span_id: str) -> dict[str, Any]:
        said = [
            {"key": semconv.REWARD_VALUE, "value": {"doubleValue": value}},
            {"key": "returned", "value": {"boolValue": True}},
            *({"key": key, "value": {"stringValue": text}} for key, text in owner(of).items()),
        ]
        late = {"startTimeUnixNano": "4000000000000000000", "endTimeUnixNano": "4000000000000000000"}
        return by_hand(None, name=semconv.REWARD_SPAN, attributes=said, spanId=span_id, **late)

    async with aiohttp.ClientSession(served.url) as http:
        assert await post(http, body(9.0, lease, "EEE19B7EC3C10001"), **bearer) == (200, {})
        assert (await post(http, body(9.0, other, "EEE19B7EC3C10002"), **bearer))[1]["partialSuccess"]
        own = Span(
            rollout_id=ids[0],
            attempt_id=ids[1],
            name=semconv.REWARD_SPAN,
            attributes={semconv.REWARD_VALUE: 0.25},
        )
        await sqlite.update_attempt(*ids, returned=[own])
        assert (await post(http, body(8.0, lease, "EEE19B7EC3C10003"), **bearer))[1]["partialSuccess"]
    await sqlite.update_attempt(*ids, AttemptStatus.SUCCEEDED)
    mine, others = await sqlite.records([ids[0], other.rollout.rollout_id])
    assert [(r.value, r.returned) for r in mine.rewards] == [(9.0, False), (0.25, True)]
    assert resolve(mine).final == 0.25 and others.rewards == []
    assert await sqlite.counts() == {
        "refused": {
            "otlp-foreign-attempt": 1,
            "reward-beside-the-returned": 1,
            "rewards-after-the-returned": 1,
        }
    }
    await served.close()
