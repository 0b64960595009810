"""Bodies that are larger, deeper or other than they seem, at the server of a store."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from contract.pages import request, send
from core.webserver.test_body import BROKEN, ENCODED

from agl_cluster.store import traces
from plugins.cluster.tests.webserver.conftest import World

JSON, PACKED, PROTOBUF = "application/json", "application/msgpack", "application/x-protobuf"


DEEP = 200


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def packed_nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


PACKED_INPUT = b"\x81\xa5input"


DEEP_BODIES = {
    "JSON, deep": (JSON, b'{"input": ' + nested(DEEP) + b"}"),
    "JSON, as deep as memory": (JSON, b'{"input": ' + nested(200_000) + b"}"),
    "JSON, never closed": (JSON, b"[" * 200_000),
    "MessagePack, deep": (PACKED, PACKED_INPUT + packed_nested(DEEP)),
    "MessagePack, as deep as memory": (PACKED, PACKED_INPUT + packed_nested(200_000)),
    "an extension": (PACKED, PACKED_INPUT + msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x"))),
    "a time": (PACKED, PACKED_INPUT + b"\xd6\xff\x00\x00\x00\x01"),
    "keys that are numbers": (PACKED, PACKED_INPUT + msgspec.msgpack.encode({1: 2})),
    "keys that are lists": (PACKED, PACKED_INPUT + b"\x81\x92\x01\x02\x01"),
    "a number of 10,000 digits": (JSON, b'{"input": ' + b"9" * 10_000 + b"}"),
}


@pytest.mark.parametrize("name", DEEP_BODIES)
async def test_the_store_refuses_what_no_reader_could_read(world: World, name: str) -> None:
    content_type, body = DEEP_BODIES[name]
    before = await world.stored()
    headers = {"Host": "localhost", "Content-Type": content_type}
    said = await send(world.served.url, request("POST", "/v1/agl/rollouts", headers, body))
    assert 400 <= said.status < 500, said
    one = b'{"method": "enqueue_rollout", "params": ' + body + b"}"
    if content_type == PACKED:
        one = b"\x82\xa6method\xafenqueue_rollout\xa6params" + body
    many = (b"\x91" + one) if content_type == PACKED else b"[" + one + b"]"
    said = await send(world.served.url, request("POST", "/v1/agl/batch", headers, many))
    assert 400 <= said.status < 500 or (said.status == 200 and b'"error"' in said.body), said
    assert await world.stored() == before


@pytest.mark.parametrize("n", [2**63, 2**64, 10**30, -(2**63) - 1])
async def test_integers_that_no_column_holds(world: World, n: int) -> None:
    before = await world.stored()
    for path, asked in (
        ("/v1/agl/queue/dequeue/many", {"limit": n}),
        ("/v1/agl/rollouts/search", {"limit": n}),
        ("/v1/agl/counts", {"kind": "k", "reason": "r", "n": n}),
        ("/v1/agl/steps", {"run_id": "r", "step": n, "metrics": {}, "fingerprints": []}),
    ):
        headers = {"Host": "localhost", "Content-Type": JSON}
        said = await send(world.served.url, request("POST", path, headers, json.dumps(asked).encode()))
        assert 400 <= said.status < 500, (path, said)
    assert await world.stored() == before


async def test_a_large_integer_in_a_task_is_kept(world: World) -> None:
    """What a task says is its own affair: it comes back as it was sent."""
    headers = {"Host": "localhost", "Content-Type": JSON, "Authorization": f"Bearer {world.token}"}
    body = json.dumps({"input": {"gold": 2**70}}).encode()
    said = await send(world.served.url, request("POST", "/v1/agl/rollouts", headers, body))
    assert said.status == 200 and json.loads(said.body)["input"] == {"gold": 2**70}


async def test_a_key_sends_less_than_a_runner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "KEY_BODY_LIMIT", 1000)
    body = b'{"resourceSpans": []}' + b" " * 2000
    headers = {"Host": "localhost", "Content-Type": JSON, "Authorization": f"Bearer {world.token}"}
    assert (await send(world.served.url, request("POST", "/v1/traces", headers, body))).status == 200
    headers["Authorization"] = f"Bearer {world.key}"
    assert (await send(world.served.url, request("POST", "/v1/traces", headers, body))).status == 413


async def test_a_flood_of_empty_spans(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_SPANS", 1000)
    spans = b"\x12\x00" * 1001
    body = io.BytesIO()
    scope = b"\x12" + _varint(len(spans)) + spans
    body.write(b"\x0a" + _varint(len(scope)) + scope)
    headers = {"Host": "localhost", "Content-Type": PROTOBUF, "Authorization": f"Bearer {world.token}"}
    said = await send(world.served.url, request("POST", "/v1/traces", headers, body.getvalue()))
    assert said.status == 413 and b"1000" in said.body


def _varint(n: int) -> bytes:
    return bytes([n & 0x7F | 0x80, n >> 7]) if n > 127 else bytes([n])


@pytest.mark.parametrize("name", ENCODED)
async def test_encodings_of_spans(world: World, name: str) -> None:
    encoding, body, status = ENCODED[name]
    before = await world.stored()
    headers = {"Host": "localhost", "Content-Type": JSON, "Content-Encoding": encoding}
    headers["Authorization"] = f"Bearer {world.key}"
    assert (await send(world.served.url, request("POST", "/v1/traces", headers, body))).status == status
    assert await world.stored() == before


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/agl/rollouts"])
@pytest.mark.parametrize("name", BROKEN)
async def test_framing_that_lies(world: World, name: str, path: str) -> None:
    before = await world.stored()
    head = f"Host: localhost\r\nContent-Type: {JSON}\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {world.key}\r\n"
    url = world.served.url
    said = await send(url, f"POST {path} HTTP/1.1\r\n{head}".encode() + BROKEN[name])
    assert 400 <= said.status < 500, said
    assert (await send(url, request("GET", "/v1/agl/health", {"Host": "localhost"}))).status == 200
    assert await world.stored() == before
