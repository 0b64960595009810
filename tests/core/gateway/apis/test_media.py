"""Images: sent to the engine as they came, recorded by hash, masked, and refused where they cannot be."""

import base64
import hashlib
import json

import pytest

from agentlightning.gateway.apis.base import Earlier
from agentlightning.gateway.apis.media import is_recorded_only, recorded
from agentlightning.gateway.apis.messages import MESSAGES
from agentlightning.gateway.apis.responses import RESPONSES
from agentlightning.gateway.errors import RequestRefused

RAW = b"\x89PNG" + bytes(3000)
DATA = base64.b64encode(RAW).decode()
URL = f"data:image/png;base64,{DATA}"
HASH = {"sha256": hashlib.sha256(RAW).hexdigest(), "media_type": "image/png", "bytes": len(RAW)}
TEXT = {"type": "text", "text": "what is it?"}
CHAT = {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": URL}}]}
ASKED = {
    "/chat/completions": {"messages": [CHAT]},
    "/responses": {
        "messages": None,
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "what is it?"},
                    {"type": "input_image", "image_url": URL},
                ],
            }
        ],
    },
    "/messages": {
        "max_tokens": 20,
        "messages": [
            {
                "role": "user",
                "content": [
                    TEXT,
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": DATA},
                    },
                ],
            }
        ],
    },
}
EACH = pytest.mark.parametrize("path", ASKED)


@EACH
@pytest.mark.parametrize("stream", [False, True])
async def test_an_image_passes_and_is_recorded_by_its_hash(world, path, stream):
    answer = await world.post(ASKED[path] | {"stream": stream}, path=path)
    assert answer.status == 200
    assert world.engine.bodies[0]["messages"] == [CHAT]
    (call,) = world.store.calls
    assert call.request["messages"][0]["content"] == [TEXT, {"type": "image_url", "image_url": HASH}]
    assert (call.masked, call.status, call.has_ids) == ("media", "ok", True)
    assert (await world.metrics())["masked"] == {"media": 1}


async def test_seeds_do_not_depend_on_how_an_image_is_recorded(world):
    """After a restart the gateway counts its earlier requests by their records."""
    for n in range(2):
        await world.post(ASKED["/chat/completions"], key=world.open(f"s{n}", seed=5))
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


async def test_an_answer_about_an_image_can_be_continued_while_the_gateway_has_it(world):
    first = json.loads((await world.post(ASKED["/responses"], path="/responses")).raw)
    more = {"messages": None, "input": "and now?", "previous_response_id": first["id"]}
    assert (await world.post(more, path="/responses")).status == 200
    assert world.engine.bodies[1]["messages"][0] == CHAT
    assert [call.masked for call in world.store.calls] == ["media", "media"]
    path = f"/responses/{first['id']}/input_items"
    headers = {"Authorization": f"Bearer {world.key}"}
    async with world.session.get(world.url + path, headers=headers) as answer:
        image = (await answer.json())["data"][0]["content"][1]
    assert image["type"] == "input_image" and image["sha256"] == HASH["sha256"]
    history = world.gateway._attempts._open["at-1"].history
    history._drop(first["id"])  # as after a restart
    answer = await world.post(more, path="/responses")
    error = json.loads(answer.raw)["error"]
    assert (answer.status, error["code"]) == (400, "media-not-kept") and "whole conversation" in error[
        "message"
    ]


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
        assert is_recorded_only([message]) and not is_recorded_only(asked)


def test_images_in_results_of_tools():
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, image]}
    turns = [{"role": "user", "content": "look"}, use, {"role": "user", "content": [result]}]
    body = MESSAGES.chat_body({"model": "m", "max_tokens": 9, "messages": turns}, Earlier())
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert body["messages"][-1] == {"role": "tool", "tool_call_id": "t", "content": [TEXT, part]}


@pytest.mark.parametrize(
    ("api", "part"),
    [
        (RESPONSES, {"type": "input_image", "file_id": "file-1"}),
        (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "file-1"}}),
    ],
)
def test_an_image_by_its_file_is_refused(api, part):
    said = [{"role": "user", "content": [part]}]
    asked = {"model": "m", "max_tokens": 9, "input" if api is RESPONSES else "messages": said}
    asked = asked if api is MESSAGES else {"model": "m", "input": said}
    with pytest.raises(RequestRefused, match="send the image itself"):
        api.chat_body(asked, Earlier())
