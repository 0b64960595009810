"""Bodies of every kind to every route of a store's server: never a 500, nothing stored on a refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from contract.pages import request
from core.webserver.conftest import SECRET
from core.webserver.test_fuzz import DEEP, JSON, PROTOBUF, VALUES, Running, bodies, headers, stands
from hypothesis import HealthCheck, given, settings, strategies as st
from marks import examples

import agl_audit.plugin
from agentlightning.plugins.manager import build
from agl_cluster.store.routes import BY_NAME, added
from plugins.cluster.tests.webserver.conftest import opened


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    with stands(opened(tmp_path)) as found:
        yield found


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
