"""Images: sent to the engine as they came, recorded by hash, masked, and refused where they cannot be."""

import base64
import hashlib
import json

import pytest

from agentlightning.gateway.media import recorded

RAW = b"\x89PNG" + bytes(3000)
DATA = base64.b64encode(RAW).decode()
URL = f"data:image/png;base64,{DATA}"
HASH = {"sha256": hashlib.sha256(RAW).hexdigest(), "media_type": "image/png", "bytes": len(RAW)}
TEXT = {"type": "text", "text": "what is it?"}
CHAT = {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": URL}}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_image_passes_and_is_recorded_by_its_hash(world, stream):
    answer = await world.post({"messages": [CHAT], "stream": stream})
    assert answer.status == 200
    assert world.engine.bodies[0]["messages"] == [CHAT]
    (call,) = world.store.calls
    assert call.request["messages"][0]["content"] == [TEXT, {"type": "image_url", "image_url": HASH}]
    assert (call.masked, call.status, call.has_ids) == ("media", "ok", True)
    assert (await world.metrics())["masked"] == {"media": 1}


async def test_seeds_do_not_depend_on_how_an_image_is_recorded(world):
    """After a restart the gateway counts its earlier requests by their records."""
    for n in range(2):
        await world.post({"messages": [CHAT]}, key=world.open(f"s{n}", seed=5))
    first, second = world.store.calls
    assert first.sampling["seed"] == second.sampling["seed"]


async def test_a_url_is_recorded_as_it_is(world):
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
    await world.post({"messages": [{"role": "user", "content": [part]}]})
    (call,) = world.store.calls
    assert call.request["messages"][0]["content"] == [part] and call.masked == "media"


async def test_text_in_parts_is_no_media(world):
    await world.post({"messages": [{"role": "user", "content": [TEXT, {**TEXT, "text": "data:x,y"}]}]})
    assert world.store.calls[0].masked is None


@pytest.mark.parametrize(
    ("value", "bytes_", "media_type"),
    [
        ("data:image/png;base64,AAAA", 3, "image/png"),
        ("data:,a%20b", 3, "text/plain"),
        ("DATA:image/x;base64,***", 0, "image/x"),
        ("A" * 4000, 3000, None),
    ],
)
def test_references(value, bytes_, media_type):
    for part in (
        {"type": "image_url", "image_url": {"url": value, "detail": "low"}},
        {"type": "image_url", "image_url": value},
        {"type": "input_audio", "input_audio": {"data": value, "format": "wav"}},
    ):
        asked = [{"role": "user", "content": [TEXT, part]}]
        (message,) = recorded(asked)
        kept = message["content"][1][part["type"]]
        assert (kept["bytes"], kept["media_type"]) == (bytes_, media_type)
        assert value not in json.dumps(message) and value in json.dumps(asked)
