"""Images in requests of the Responses and Messages APIs."""

import json

import pytest
from agl_gateway.apis.history import History, is_recorded_only
from agl_gateway.apis.messages import MESSAGES
from agl_gateway.apis.responses import RESPONSES
from core.gateway.test_media import CHAT, DATA, HASH, TEXT, URL

from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.media import recorded

ASKED = {
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
    history = world.gateway._attempts._open["at-1"].part(History)
    history._drop(first["id"])  # as after a restart
    answer = await world.post(more, path="/responses")
    error = json.loads(answer.raw)["error"]
    assert (answer.status, error["code"]) == (400, "media-not-kept") and "whole conversation" in error[
        "message"
    ]


def test_images_in_results_of_tools():
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, image]}
    turns = [{"role": "user", "content": "look"}, use, {"role": "user", "content": [result]}]
    body = MESSAGES.chat_body({"model": "m", "max_tokens": 9, "messages": turns})
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
        api.chat_body(asked)


def test_what_is_known_by_its_hash_alone():
    asked = [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": URL}}]}]
    kept = recorded(asked)
    assert kept is not None and is_recorded_only(kept) and not is_recorded_only(asked)
    assert not is_recorded_only([{"role": "user", "content": "sha256"}])
