"""The openai SDK's Responses against the gateway: what it accumulates, parses and raises."""

import json

import pytest

pytest.importorskip("openai")
import openai
from agl_gateway.apis.responses import RESPONSES
from core.gateway.conftest import PROMPT, tokens_of
from hypothesis import given, settings
from marks import examples
from openai import AsyncOpenAI, OpenAI
from openai._base_client import SyncAPIClient
from plugins.gateway.test_base_streams import answers
from pydantic import BaseModel

TOOLS = [{"type": "function", "name": "calculator", "parameters": {"type": "object", "properties": {}}}]
http = pytest.importorskip("httpx2" if "httpx2" in SyncAPIClient.__init__.__globals__ else "httpx")


@pytest.fixture
async def client(world):
    async with AsyncOpenAI(base_url=world.url, api_key=world.key, max_retries=0) as client:
        yield client


async def test_create(world, client):
    answer = await client.responses.create(model="m", input="hi", instructions="be kind")
    assert answer.output_text == "hello there world" and answer.status == "completed"
    assert answer.model_extra["prompt_token_ids"] == PROMPT
    assert answer.model_extra["token_ids"] == world.store.calls[0].response_ids
    assert answer.usage.output_tokens == 3


async def test_stream_with_tools(world, client):
    world.engine.options = {"text": "a b c", "tool": ("calculator", '{"x":  1}')}
    async with client.responses.stream(model="m", input="hi", tools=TOOLS) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_response()
    (call,) = answer.output
    assert (call.name, call.arguments) == ("calculator", '{"x":  1}')
    assert world.store.calls[0].response_ids == tokens_of("a b c")[0]


async def test_what_came_back_can_be_sent_again(world, client):
    world.engine.options = {"tool": ("calculator", "{}")}
    answer = await client.responses.create(model="m", input="hi", tools=TOOLS)
    result = {"type": "function_call_output", "call_id": answer.output[0].call_id, "output": "2"}
    history = [{"role": "user", "content": "hi"}, *[item.model_dump() for item in answer.output], result]
    await client.responses.create(model="m", input=history, tools=TOOLS)
    assert [m["role"] for m in world.engine.bodies[1]["messages"]] == ["user", "assistant", "tool"]


async def test_parse(world, client):
    class Answer(BaseModel):
        value: int

    world.engine.options = {"text": '{"value": 3}'}
    answer = await client.responses.parse(model="m", input="hi", text_format=Answer)
    assert answer.output_parsed.value == 3
    assert world.engine.bodies[0]["response_format"]["json_schema"]["name"] == "Answer"
    async with client.responses.stream(model="m", input="hi", text_format=Answer) as stream:
        assert (await stream.get_final_response()).output_parsed.value == 3


async def test_errors_have_the_sdks_types(world, client):
    with pytest.raises(openai.BadRequestError, match="stored at the vendor's"):
        await client.responses.create(model="m", input="hi", prompt={"id": "pmpt_1"})
    with pytest.raises(openai.NotFoundError, match="nothing in the background"):
        await client.responses.cancel("resp_1")

    async def broken(request, body):
        return await world.engine.stream(request, [b"data: {}\n\n"])

    world.engine.answer = broken
    with pytest.raises(openai.APIStatusError, match="not a completion"):
        async for _ in await client.responses.create(model="m", input="hi", stream=True):
            pass


def replaying(content, kind):
    """A client whose server says ``content``."""
    answer = http.Response(200, content=content, headers={"Content-Type": kind})
    transport = http.MockTransport(lambda request: answer)
    return OpenAI(base_url="http://engine/v1", api_key="k", http_client=http.Client(transport=transport))


@given(answers())
@settings(deadline=None, max_examples=examples(30))
def test_what_the_sdk_accumulates_is_the_whole_answer(chat):
    answer = RESPONSES.answer({"model": "m", "input": "hi"}, chat)
    with replaying(json.dumps(answer).encode(), "application/json") as client:
        whole = client.responses.create(model="m", input="hi")
    with (
        replaying(b"".join(RESPONSES.events(answer)), "text/event-stream") as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        texts, arguments = {}, {}
        for event in stream:
            if event.type == "response.output_text.delta":
                texts[event.output_index] = event.snapshot
            elif event.type == "response.function_call_arguments.delta":
                arguments[event.output_index] = event.snapshot
        last = event.response
    assert last.id == whole.id and len(last.output) == len(whole.output)
    for place, item in enumerate(whole.output):
        given, said = item.to_dict(), last.output[place].to_dict()
        assert {name: said[name] for name in given if name != "content"} == {
            name: value for name, value in given.items() if name != "content"
        }
        if item.type == "function_call":
            assert arguments.get(place, "") == item.arguments
        if item.type == "message":
            assert texts.get(place, "") == item.content[0].text == said["content"][0]["text"]
