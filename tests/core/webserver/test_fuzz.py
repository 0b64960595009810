"""Bodies of every kind to every route of store and gateway: never a 500, nothing stored on a refusal, and
both servers answer afterwards.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest
from contract.pages import Said, request, send
from hypothesis import HealthCheck, given, settings, strategies as st
from marks import examples

import agl_audit.plugin
from agentlightning.plugins.manager import build
from agl_cluster.store.routes import BY_NAME, added

from .conftest import SECRET, World, opened

JSON, PACKED, PROTOBUF = "application/json", "application/msgpack", "application/x-protobuf"


class Running(NamedTuple):
    """A world that stands between the examples of a test."""

    loop: asyncio.AbstractEventLoop
    world: World

    def send(self, url: str, raw: bytes) -> Said:
        return self.loop.run_until_complete(asyncio.wait_for(send(url, raw), 300))

    def stored(self) -> str:
        return self.loop.run_until_complete(self.world.stored())


@pytest.fixture
def running(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()
    world = loop.run_until_complete(stack.enter_async_context(opened(tmp_path)))
    yield Running(loop, world)
    loop.run_until_complete(stack.aclose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


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


ROUTES = BY_NAME | added(build([agl_audit.plugin], discover=False))
STORE = [route for route in ROUTES.values() if route.verb != "GET"]
WAITS = frozenset({"wait", "timeout"})
"""Fields that make a request wait; what they may be is tested with the store."""


def asked(name: str) -> tuple[str, ...]:
    known = [field.name for field in msgspec.structs.fields(ROUTES[name].parameters)]
    return tuple(field for field in known if field not in WAITS) or ("nothing",)


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_store(running: Running, data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(STORE))
    rollout, attempt = running.world.ids
    places = {"rollout_id": rollout, "attempt_id": attempt, "run_id": "run-1"}
    path = route.path.format_map({place: places.get(place, "x") for place in route.path_parameters})
    content_type, encoding, body = data.draw(bodies(asked(route.name)))
    if data.draw(st.booleans()) and content_type == JSON and not encoding:
        path, body = "/v1/agl/batch", b'[{"method": "%s", "params": %s}]' % (route.name.encode(), body)
    before = running.stored()
    url = running.world.served.url
    token = running.world.token
    said = running.send(url, request(route.verb, path, headers(content_type, encoding, token), body))
    assert said.status < 500, said
    if said.status >= 400:
        assert running.stored() == before
    for check in (
        "/v1/agl/health",
        "/v1/agl/statistics",
        "/v1/agl/counts",
        "/v1/agl/runs",
        "/v1/agl/resources",
    ):
        assert running.send(url, request("GET", check, headers(JSON, "", token))).status == 200, check
    every = request("POST", "/v1/agl/rollouts/search", headers(JSON, "", token), b"{}")
    assert running.send(url, every).status == 200


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
GATEWAY = [
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/messages/count_tokens", "/v1/conversations"),
]
GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_gateway(running: Running, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(GATEWAY))
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
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    body=st.one_of(
        st.binary(max_size=100),
        DEEP.map(lambda deep: b'{"resourceSpans": ' + deep + b"}"),
        VALUES.map(lambda value: json.dumps({"resourceSpans": value}).encode()),
        VALUES.map(
            lambda value: json.dumps(
                {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x", "attributes": value}]}]}]}
            ).encode()
        ),
    ),
    content_type=st.sampled_from([JSON, PROTOBUF]),
    encoding=st.sampled_from(["", "gzip", "deflate", "br"]),
    keyed=st.booleans(),
)
def test_spans(running: Running, body: bytes, content_type: str, encoding: str, keyed: bool) -> None:
    before = running.stored()
    url, key = running.world.served.url, running.world.key if keyed else running.world.token
    said = running.send(url, request("POST", "/v1/traces", headers(content_type, encoding, key), body))
    assert said.status < 500, said
    if said.status >= 400:
        assert running.stored() == before
    assert running.send(url, request("GET", "/v1/agl/health", {"Host": "localhost"})).status == 200
