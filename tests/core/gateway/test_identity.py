"""Who is asking: keys, headers, conflicts."""

import base64
import json
import time
from urllib.parse import quote

import pytest
from core.gateway.conftest import SECRET

from agentlightning.gateway import Upstream
from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.identity import identify
from agentlightning.keys import CONTEXT_KEY, Keys


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ({"Authorization": ""}, 401, "no-key"),
        ({"Authorization": "Basic abc"}, 401, "no-key"),
        ({"Authorization": "Bearer sk-123"}, 401, "unknown-key"),
        ({"Authorization": "Bearer agl-AAAA"}, 401, "unknown-key"),
        ({"Authorization": f"Bearer {CONTEXT_KEY}"}, 401, "placeholder-key"),
        (
            {"Authorization": f"Bearer {Keys(b'another secret, 16+').mint('ro-1', 'at-1')}"},
            401,
            "unknown-key",
        ),
        ({"Authorization": f"Bearer {Keys(SECRET).mint('ro-1', 'at-1', ttl=-1)}"}, 401, "expired-key"),
        ({"x-agl-attempt": "at-2"}, 409, "conflicting-identity"),
        ({"x-agl-tags": "{not json"}, 400, "bad-header"),
        ({"x-agl-tags": quote('["list"]')}, 400, "bad-header"),
        ({"x-agl-tags": quote('{"agent": {"deep": 1}}')}, 400, "bad-header"),
        ({"x-stainless-retry-count": "many"}, 400, "bad-header"),
        ({"x-stainless-retry-count": "-1"}, 400, "bad-header"),
    ],
)
async def test_refused_and_counted(world, headers, status, reason):
    got = await world.post(headers=headers)
    error = json.loads(got.raw)["error"]
    assert (got.status, error["code"]) == (status, reason)
    assert got.headers["x-should-retry"] == "false"
    assert not world.engine.bodies and not world.store.calls
    assert [k[:2] for k in world.store.counted] == [("refused", reason)]
    if status == 400:
        assert next(iter(headers)) in error["message"]
    if status in (400, 409):
        assert world.store.counted["refused", reason, "at-1"] == 1
    assert (await world.metrics())["refused"] == {reason: 1}


async def test_agreeing_header_and_tags(world):
    tags = {"agent": "Zoë", "turn": 3, "flag": True, "none": None}
    key = world.open("2", tags={"agent": "below", "team": "red"})
    got = await world.post(key=key, headers={"x-agl-attempt": "at-2", "x-agl-tags": quote(json.dumps(tags))})
    assert got.status == 200
    assert world.store.calls[0].tags == {"agent": "Zoë", "turn": "3", "flag": "True", "team": "red"}


async def test_tags_from_baggage(world):
    """As OpenTelemetry's propagators send them; the tags header outranks them."""
    baggage = "user=7, agl.agent=Zo%C3%AB;ttl=1,agl.phase=late+night,agl.gr%C3%B6%C3%9Fe=1,broken"
    got = await world.post(headers={"baggage": baggage, "x-agl-tags": quote('{"phase": "day"}')})
    assert got.status == 200
    tags = world.store.calls[0].tags
    assert {name: tags[name] for name in ("agent", "phase", "größe")} == {
        "agent": "Zoë",
        "phase": "day",
        "größe": "1",
    }
    assert "user" not in tags


async def test_any_client_may_name_its_agent(world):
    named = {"x-agl-agent": "Zo%C3%AB the writer", "baggage": "agl.agent=below,agl.phase=night"}
    for headers in (named, {**named, "x-agl-tags": quote('{"agent": "above"}')}, {"x-agl-agent": " "}):
        assert (await world.post(headers=headers)).status == 200
    first, second, third = (call.tags for call in world.store.calls)
    assert first == {"agent": "Zoë the writer", "phase": "night"}
    assert second["agent"] == "above" and third == {"role": "unknown"}
    assert not [name for headers in world.engine.headers for name in headers if "agl" in name.lower()]


@pytest.mark.parametrize("world", ["writer"], indirect=True)
async def test_a_named_agent_is_selected_and_routed(world):
    world.gateway.add_route(Upstream(policy="writing", url=world.engine.url, model="w"))
    key = world.open("r", policies={"writer": "writing"})
    await world.post(key=key, headers={"x-agl-agent": "writer"})
    assert (world.store.calls[0].policy, world.store.calls[0].selected) == ("writing", True)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (f"00-{'1' * 32}-{'2' * 16}-01", ("1" * 32, "2" * 16)),
        (f"cc-{'1' * 32}-{'2' * 16}-01-what-follows", ("1" * 32, "2" * 16)),
        (f"00-{'0' * 32}-{'2' * 16}-01", (None, None)),
        (f"00-{'1' * 32}-{'0' * 16}-01", (None, None)),
        (f"00-{'A' * 32}-{'2' * 16}-01", (None, None)),
        (f"00-{'1' * 31}-{'2' * 16}-01", (None, None)),
        ("nonsense", (None, None)),
        ("", (None, None)),
    ],
)
def test_traceparent(value, want):
    keys = Keys(SECRET)
    caller = identify({"Authorization": f"bearer {keys.mint('r', 'a')}", "traceparent": value}, keys)
    assert (caller.trace_id, caller.span_id) == want


def test_key_of_another_version():
    keys = Keys(SECRET)
    body = b"\x93\x01\x02\x03"
    key = "agl-" + base64.urlsafe_b64encode(keys._sign(body) + body).decode().rstrip("=")
    with pytest.raises(RequestRefused, match="another version"):
        identify({"Authorization": f"Bearer {key}"}, keys)


async def test_messages_hold_no_key(world, caplog):
    stale = Keys(SECRET).mint("ro-9", "at-9", ttl=-time.time())
    got = await world.post(key=stale)
    assert stale not in got.raw.decode() + caplog.text


async def test_uncounted_refusal_is_still_refused(world, caplog):
    async def broken(*args, **kwargs):
        raise RuntimeError("no store")

    world.store.count = broken
    assert (await world.post(key="sk-1")).status == 401
    assert (await world.metrics())["uncounted"] == 1 and "no store" in caplog.text
