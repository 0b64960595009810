"""Bodies that are larger, deeper or other than they seem: a 4xx, nothing stored, and the server lives."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from contract.pages import request, send
from core.webserver.conftest import World

from agentlightning.types.base import RequestRefused
from agentlightning.webserver import body as bodies
from agentlightning.webserver.body import (
    NotPlain,
    check_container_count,
    check_plain,
    decompress,
)

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
    said = await send(world.gateway.url, request("POST", "/v1/chat/completions", headers, body))
    assert said.status == status, said
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
    url = world.gateway.url
    said = await send(url, f"POST /v1/chat/completions HTTP/1.1\r\n{head}".encode() + BROKEN[name])
    assert 400 <= said.status < 500, said
    assert (await send(url, request("GET", "/health", {"Host": "localhost"}))).status == 200
    assert await world.stored() == before
