"""The openai SDK against the gateway, end to end."""

import asyncio

import pytest

pytest.importorskip("openai")
import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from agentlightning.gateway import Upstream

from .conftest import PROMPT, tokens_of

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = ("calculator", '{"expression": "1 + 1"}')
TOOLS = [
    {
        "type": "function",
        "function": {"name": "calculator", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture
async def client(world):
    async with AsyncOpenAI(base_url=world.url, api_key=world.key) as client:
        yield client


async def test_async(world, client):
    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == "hello there world"
    assert answer.model_extra["prompt_token_ids"] == PROMPT
    assert answer.choices[0].model_extra["token_ids"] == world.store.calls[0].response_ids
    assert [m.id async for m in client.models.list()] == ["default"]


async def test_sync(world):
    def ask():
        with OpenAI(base_url=world.url, api_key=world.key) as client:
            whole = client.chat.completions.create(model="m", messages=MESSAGES, n=2)
            text = "".join(
                c.choices[0].delta.content or ""
                for c in client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            )
            return whole, text, client.completions.create(model="m", prompt="x")

    whole, text, completion = await asyncio.to_thread(ask)
    assert len(whole.choices) == 2 and text == "hello there world"
    assert completion.choices[0].text == "hello there world"
    assert [(c.sequence, c.choice, c.api) for c in world.store.calls] == [
        (0, 0, "chat"),
        (0, 1, "chat"),
        (1, 0, "chat"),
        (2, 0, "completions"),
    ]


@pytest.mark.parametrize("stream_ids", [True, False])
async def test_stream_helper_with_tools(world, client, stream_ids):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=stream_ids))
    world.engine.options = {"text": "a b c", "tool": TOOL}
    async with client.chat.completions.stream(model="m", messages=MESSAGES, tools=TOOLS) as stream:
        async for _ in stream:
            pass
        message = (await stream.get_final_completion()).choices[0].message
    assert (message.tool_calls[0].function.name, message.tool_calls[0].function.arguments) == TOOL
    assert world.store.calls[0].response["tool_calls"][0]["function"]["arguments"] == TOOL[1]
    assert world.store.calls[0].response_ids == tokens_of("a b c")[0]


async def test_stream_usage(world, client):
    stream = await client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    assert [c async for c in stream][-1].usage.completion_tokens == 3


async def test_parse(world, client):
    class Answer(BaseModel):
        value: int

    world.engine.options = {"text": '{"value": 3}'}
    answer = await client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Answer)
    assert answer.choices[0].message.parsed.value == 3
    assert world.store.calls[0].has_ids


async def test_errors_have_the_sdks_types(world, client):
    async def limited(request, body):
        from aiohttp import web

        return web.json_response(
            {"error": {"message": "slow down"}}, status=429, headers={"retry-after-ms": "1"}
        )

    world.engine.answer = limited
    with pytest.raises(openai.RateLimitError):
        await client.with_options(max_retries=1).chat.completions.create(model="m", messages=MESSAGES)
    assert [(c.status, c.retry) for c in world.store.calls] == [("error", 0), ("error", 1)]
    await world.gateway.close_attempt("at-1")
    with pytest.raises(openai.ConflictError):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert world.store.counted["refused", "attempt-ended", "at-1"] == 1, "the SDK was told not to try again"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="sk-1").chat.completions.create(model="m", messages=MESSAGES)


async def test_too_long_a_prompt_is_a_bad_request(world, client):
    async def refuse(request, body):
        from aiohttp import web

        message = "This model's maximum context length is 10 tokens. However, you requested 12."
        return web.json_response({"object": "error", "message": message, "code": 400}, status=400)

    world.engine.answer = refuse
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.code == "context_length_exceeded" and len(world.engine.bodies) == 1


async def test_a_broken_stream_raises(world, client):
    async def broken(request, body):
        return await world.engine.stream(
            request, [{"choices": [{"index": 0, "delta": {"content": "a"}}]}], done=False
        )

    world.engine.answer = broken
    with pytest.raises(openai.APIError, match="before its answer was complete"):
        async for _ in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
            pass
    assert world.store.calls[0].status == "error"
