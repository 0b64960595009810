"""Bodies of every kind to every route of the gateway: never a 500, nothing stored on a refusal, and the
gateway answers afterwards.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from contract.pages import Said, request, send
from core.webserver.conftest import World, opened
from hypothesis import HealthCheck, given, settings, strategies as st
from marks import examples

JSON, PACKED, PROTOBUF = "application/json", "application/msgpack", "application/x-protobuf"


class Running(NamedTuple):
    """A world that stands between the examples of a test."""

    loop: asyncio.AbstractEventLoop
    world: World

    def send(self, url: str, raw: bytes) -> Said:
        return self.loop.run_until_complete(asyncio.wait_for(send(url, raw), 300))

    def stored(self) -> str:
        return self.loop.run_until_complete(self.world.stored())


@contextmanager
def stands(opening: AbstractAsyncContextManager[World]) -> Iterator[Running]:
    """A world on a loop of its own."""
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()
    yield Running(loop, loop.run_until_complete(stack.enter_async_context(opening)))
    loop.run_until_complete(stack.aclose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with stands(opened(tmp_path)) as found:
        yield found


INTEGERS = st.sampled_from([0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**40])
FLOATS = st.sampled_from([0.0, -1.5, 1e308, float("nan"), float("inf"), -float("inf")])
TEXTS = st.sampled_from(["", "x", "\0", "half \ud83d", "ü" * 300, "agl-" + "A" * 60, "../..", "null"])
LEAVES = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v, max_size=3))
DEEP = st.sampled_from([b"[" * n + b"]" * n for n in (90, 150, 900, 1100, 30_000)])
PACKED_LEAVES = st.one_of(
    st.none(), st.booleans(), st.sampled_from([0, -1, 2**63, 2**64 - 1]), FLOATS, st.binary(max_size=5)
)
PACKED_VALUES = st.recursive(
    PACKED_LEAVES | st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=5)),
    lambda v: (
        st.lists(v, max_size=3) | st.dictionaries(st.integers(-3, 3) | st.text(max_size=3), v, max_size=3)
    ),
)


@st.composite
def bodies(draw: st.DrawFn, fields: tuple[str, ...]) -> tuple[str, str, bytes]:
    """Content type, content encoding and body: nonsense, or some of the ``fields`` with hostile values."""
    kind = draw(st.sampled_from(["json", "json", "deep", "packed", "bytes", "array"]))
    content_type = JSON
    if kind == "bytes":
        body = draw(st.binary(max_size=60))
        content_type = draw(st.sampled_from([JSON, PACKED, PROTOBUF]))
    elif kind == "packed":
        given = draw(st.dictionaries(st.sampled_from(fields), PACKED_VALUES, max_size=3))
        body, content_type = msgspec.msgpack.encode(given), PACKED
    elif kind == "deep":
        body = b'{"%s": %s}' % (draw(st.sampled_from(fields)).encode(), draw(DEEP))
    else:
        given = draw(st.dictionaries(st.sampled_from(fields), VALUES, max_size=4))
        body = json.dumps([given] if kind == "array" else given).encode()
    encoding = draw(st.sampled_from(["", "", "", "gzip", "deflate", "br"]))
    if encoding == "gzip" and draw(st.booleans()):
        body = gzip.compress(body)[: draw(st.integers(1, 100))]
    return content_type, encoding, body


def headers(content_type: str, encoding: str, key: str = "") -> dict[str, str]:
    found = {"Host": "localhost", "Content-Type": content_type, "Content-Encoding": encoding}
    return {**found, **({"Authorization": f"Bearer {key}"} if key else {})}


FIELDS = (
    *(
        "model",
        "messages",
        "prompt",
        "input",
        "stream",
        "n",
        "max_tokens",
        "max_output_tokens",
        "seed",
        "tools",
    ),
    *("temperature", "top_p", "stop", "logit_bias", "guided_choice", "response_format", "stream_options"),
    *("system", "text", "include", "tool_choice", "stop_sequences", "thinking", "logprobs", "functions"),
)
GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}


def fuzz(running: Running, data: st.DataObject, paths: list[str]) -> None:
    """One request to the gateway, of a kind that ``data`` draws."""
    path = data.draw(st.sampled_from(paths))
    content_type, encoding, body = data.draw(bodies(FIELDS))
    if data.draw(st.booleans()):
        good = {k: v for k, v in GOOD.items() if (k == "prompt") == (path == "/v1/completions")}
        body = json.dumps({**good, **data.draw(st.dictionaries(st.sampled_from(FIELDS), VALUES))}).encode()
        encoding = ""
    before = running.stored()
    url, key = running.world.gateway.url, running.world.key
    said = running.send(url, request("POST", path, headers(content_type, encoding, key), body))
    assert said.status < 500 or b"bad-answer" in said.body, said
    if 400 <= said.status < 500:
        assert running.stored() == before
    assert running.send(url, request("GET", "/metrics", {"Host": "localhost"})).status == 200


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_gateway(running: Running, data: st.DataObject) -> None:
    fuzz(running, data, ["/v1/chat/completions", "/v1/completions"])
