"""Bodies that are larger, deeper or other than they seem: a 4xx, nothing stored, and the server lives."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from typing import Any

import msgspec
import pytest
from contract.pages import request, send

from agentlightning.types.base import RequestRefused
from agentlightning.webserver import body as bodies
from agentlightning.webserver.body import (
    NotPlain,
    check_container_count,
    check_plain,
    decompress,
)
from agl_cluster.store import traces

from .conftest import World

JSON, PACKED, PROTOBUF = "application/json", "application/msgpack", "application/x-protobuf"
DEEP = 200
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def packed_nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


# ------------------------------------------------------------------------------------------------------ bytes
def test_what_was_packed_is_unpacked() -> None:
    text = b"the same words again; " * 5000
    assert decompress(gzip.compress(text), "gzip", 1 << 20) == text
    assert decompress(zlib.compress(text), "deflate", 1 << 20) == text
    members = gzip.compress(text[:7]) + gzip.compress(b"") + gzip.compress(text[7:])
    assert decompress(members, "x-gzip", 1 << 20) == text
    noise = bytes(i * i % 251 for i in range(300_000))
    assert decompress(gzip.compress(noise, 0), "gzip", 1 << 20) == noise, "larger than one window"


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (b"{}", "gzip"),
        (b"", "gzip"),
        (b"{}", "deflate"),
        (gzip.compress(b"{}")[:-1], "gzip"),
        (gzip.compress(b"{}"), "deflate"),
        (zlib.compress(b"{}"), "gzip"),
        (gzip.compress(b"{}") + b"\0\0\0", "gzip"),
        (zlib.compress(b"{}") + zlib.compress(b"{}"), "deflate"),
        (gzip.compress(b"") * (bodies.MAX_MEMBERS + 1), "gzip"),
        (gzip.compress(b"\0" * (64 << 20)), "gzip"),
    ],
    ids=[
        "plain",
        "nothing",
        "plain as deflate",
        "broken off",
        "gzip as deflate",
        "deflate as gzip",
        "more behind",
        "two of deflate",
        "many members",
        "ratio",
    ],
)
def test_a_wrong_encoding_is_a_400(raw: bytes, encoding: str) -> None:
    with pytest.raises(RequestRefused, match="Content-Encoding") as caught:
        decompress(raw, encoding, 256 << 20)
    assert caught.value.status == 400


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(b"\0" * (8 << 20))
    with pytest.raises(RequestRefused, match="more than 1 MiB") as caught:
        decompress(bomb, "gzip", 1 << 20)
    assert caught.value.status == 413
    several = gzip.compress(b"\0" * (1 << 19)) * 3
    with pytest.raises(RequestRefused, match="more than 1 MiB"):
        decompress(several, "gzip", 1 << 20)


# ---------------------------------------------------------------------------------------------------- content
def test_depth_is_counted_without_recursion() -> None:
    value: Any = 1
    for _ in range(bodies.MAX_DEPTH):
        value = [value]
    check_plain(value)
    with pytest.raises(NotPlain):
        check_plain({"a": value})
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotPlain):
        check_plain([1, "x", value])
    while isinstance(value, list):  # taking it apart by recursion is what it is made against
        value = value[0]


@pytest.mark.parametrize("odd", [{1: 2}, {(1,): 2}, {"a": {b"x": 1}}, [{"a": (1, 2)}], [object()]])
def test_what_json_cannot_say(odd: Any) -> None:
    with pytest.raises(NotPlain):
        check_plain(odd)
    check_plain({"a": [1, 2.5, None, True, "x", b"y", {}, [], 2**70]})


def test_a_body_of_empty_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_CONTAINERS", 1000)
    check_container_count(b"[" * 2000)
    with pytest.raises(RequestRefused, match="1000 objects and lists"):
        check_container_count(b"[]," * (1 << 19))
    check_container_count(b'"text"' * (1 << 19))


# ---------------------------------------------------------------------------------------------------- servers
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


ENCODED = {
    "plain text called gzip": ("gzip", b"{}", 400),
    "gzip broken off": ("gzip", gzip.compress(b"{}" * 100)[:-5], 400),
    "a bomb": ("gzip", gzip.compress(b" " * (64 << 20)), 413),
    "a coding that nobody has": ("snappy", b"{}", 415),
    "a coding upon a coding": ("gzip, gzip", gzip.compress(gzip.compress(b"{}")), 415),
}


@pytest.mark.parametrize("name", ENCODED)
async def test_encodings_of_calls_and_spans(world: World, name: str) -> None:
    encoding, body, status = ENCODED[name]
    before = await world.stored()
    headers = {
        "Host": "localhost",
        "Content-Type": JSON,
        "Content-Encoding": encoding,
        "Authorization": f"Bearer {world.key}",
    }
    for url, path in ((world.gateway.url, "/v1/chat/completions"), (world.served.url, "/v1/traces")):
        said = await send(url, request("POST", path, headers, body))
        assert said.status == status, (path, said)
    assert await world.stored() == before


async def test_a_compressed_call_is_answered(world: World) -> None:
    raw = json.dumps(CHAT).encode()
    for encoding, body in (("gzip", gzip.compress(raw)), ("deflate", zlib.compress(raw)), ("identity", raw)):
        headers = {"Host": "localhost", "Content-Type": JSON, "Content-Encoding": encoding}
        headers["Authorization"] = f"Bearer {world.key}"
        said = await send(world.gateway.url, request("POST", "/v1/chat/completions", headers, body))
        assert said.status == 200, (encoding, said)


BROKEN = {
    "a chunk without a size": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "a chunk larger than itself": b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}}}}}\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length that is no number": b"Content-Length: two\r\n\r\n{}",
    "a negative length": b"Content-Length: -2\r\n\r\n{}",
    "a length of the whole world": b"Content-Length: 99999999999999\r\n\r\n{}",
    "too many headers": b"".join(b"X-%d: 1\r\n" % i for i in range(2000)) + b"Content-Length: 2\r\n\r\n{}",
    "a header without end": b"X: " + b"y" * 100_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_framing_that_lies(world: World, name: str) -> None:
    before = await world.stored()
    head = f"Host: localhost\r\nContent-Type: {JSON}\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {world.key}\r\n"
    for url, path, health in (
        (world.gateway.url, "/v1/chat/completions", "/health"),
        (world.served.url, "/v1/traces", "/v1/agl/health"),
        (world.served.url, "/v1/agl/rollouts", "/v1/agl/health"),
    ):
        said = await send(url, f"POST {path} HTTP/1.1\r\n{head}".encode() + BROKEN[name])
        assert 400 <= said.status < 500, (path, said)
        assert (await send(url, request("GET", health, {"Host": "localhost"}))).status == 200
    assert await world.stored() == before


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
