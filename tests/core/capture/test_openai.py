"""Every way to call the openai SDK leaves exact call spans, and the user sees what he saw before."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from contract.capturing import Recording, assert_exact, assert_same_tokens
from contract.model_server import ModelServer, Reply, tool_call
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.sdk_call import LOGPROB_COUNT, RETRIES
from agentlightning.semconv import PARTIAL

pytestmark = pytest.mark.usefixtures("capturing")
ASK: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "say ünïcode"}]}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
]


class Number(BaseModel):
    n: int


def client(server: ModelServer, key: str = "agl-context", **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key=key, **options)


# ----------------------------------------------------------------------------------------- all the paths
async def create(c: openai.AsyncOpenAI) -> Any:
    return await c.chat.completions.create(**ASK)


async def stream(c: openai.AsyncOpenAI) -> Any:
    return [chunk async for chunk in await c.chat.completions.create(**ASK, stream=True)]


async def stream_with_usage(c: openai.AsyncOpenAI) -> Any:
    asked = await c.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    async with asked as chunks:
        return [chunk async for chunk in chunks]


async def helper(c: openai.AsyncOpenAI) -> Any:
    async with c.chat.completions.stream(**ASK) as events:
        async for _ in events:
            pass
        return await events.get_final_completion()


async def parse(c: openai.AsyncOpenAI) -> Any:
    return await c.chat.completions.parse(**ASK, response_format=Number)


async def raw(c: openai.AsyncOpenAI) -> Any:
    return (await c.chat.completions.with_raw_response.create(**ASK)).parse()


async def raw_stream(c: openai.AsyncOpenAI) -> Any:
    response = await c.chat.completions.with_raw_response.create(**ASK, stream=True)
    return [chunk async for chunk in response.parse()]


async def raw_parse(c: openai.AsyncOpenAI) -> Any:
    return (await c.chat.completions.with_raw_response.parse(**ASK, response_format=Number)).parse()


async def many(c: openai.AsyncOpenAI) -> Any:
    return await c.chat.completions.create(**ASK, n=3)


async def many_streamed(c: openai.AsyncOpenAI) -> Any:
    return [chunk async for chunk in await c.chat.completions.create(**ASK, n=3, stream=True)]


async def tools(c: openai.AsyncOpenAI) -> Any:
    return await c.chat.completions.create(**ASK, tools=TOOLS)


async def tools_streamed(c: openai.AsyncOpenAI) -> Any:
    return [chunk async for chunk in await c.chat.completions.create(**ASK, tools=TOOLS, stream=True)]


async def completions(c: openai.AsyncOpenAI) -> Any:
    return await c.completions.create(model="policy", prompt="once upon a tïme")


async def completions_streamed(c: openai.AsyncOpenAI) -> Any:
    asked = await c.completions.create(model="policy", prompt=[104, 105], stream=True)
    return [chunk async for chunk in asked]


PATHS = [
    create,
    stream,
    stream_with_usage,
    helper,
    parse,
    raw,
    raw_stream,
    raw_parse,
    many,
    many_streamed,
    tools,
    tools_streamed,
    completions,
    completions_streamed,
]
CALLS = {"many": 3, "many_streamed": 3}


def script(body: dict[str, Any]) -> Any:
    if body.get("tools"):
        return tool_call("add", '{"a":  "Pa\\u0072is <|im_end|>", "b": 1.0}', content="thinking…")
    return [f'{{"n": {number}}}' for number in range(body.get("n") or 1)]


@pytest.mark.parametrize("far", [False, True], ids=["gateway", "elsewhere"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_every_path_is_exact(
    server: ModelServer, path: Callable[[Any], Awaitable[Any]], far: bool
) -> None:
    server.reply = script
    recording = Recording("path", None if far else server.url)
    async with client(server) as c:
        with recording.active():
            await path(c)
    (exchange,) = server.log
    assert len(recording.calls) == CALLS.get(path.__name__, 1)
    for span in recording.calls:
        assert span.status == "ok" and PARTIAL not in span.attributes
        assert_same_tokens(span, exchange)
    assert [span.attributes[semconv.CHOICE] for span in recording.calls] == list(range(len(exchange.answers)))
    assert COUNTS.snapshot() == {}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_the_user_sees_the_same(path: Callable[[Any], Awaitable[Any]]) -> None:
    seen = []
    for record in (False, True):
        async with ModelServer(script, ids="always") as server, client(server) as c:
            recording = Recording("same", server.url)
            if record:
                with recording.active():
                    seen.append(await path(c))
            else:
                seen.append(await path(c))
            assert bool(recording.spans) is record

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return type(value).__name__, {
            k: v for k, v in value.model_dump(warnings=False).items() if k != "created"
        }

    assert plain(seen[0]) == plain(seen[1])


def test_the_sync_client_is_exact() -> None:
    with ModelServer(script, ids="always") as server:
        recording = Recording("sync", server.url)
        with openai.OpenAI(base_url=server.url, api_key="agl-context") as c, recording.active():
            c.chat.completions.create(**ASK)
            list(c.chat.completions.create(**ASK, stream=True))
            with c.chat.completions.create(**ASK, stream=True) as chunks:
                while next(chunks, None):
                    pass
            c.chat.completions.parse(**ASK, response_format=Number)
        assert_exact(recording, server.log)
        assert len(server.log) == 4


async def test_a_body_that_the_user_reads_himself_is_counted(
    server: ModelServer, recording: Recording
) -> None:
    async with client(server) as c:
        with recording.active():
            async with c.chat.completions.with_streaming_response.create(**ASK) as response:
                assert json.loads(await response.text())["choices"]
    (call,) = recording.calls
    assert semconv.TOKENS_DIGEST not in call.attributes
    assert COUNTS.snapshot() == {"wire-not-read": 1}


async def test_other_endpoints_of_the_api_are_left_alone(server: ModelServer, recording: Recording) -> None:
    async with client(server) as c:
        with recording.active():
            assert [model.id async for model in c.models.list()] == ["scripted"]
    assert recording.spans == []


async def test_outside_an_attempt_nothing_happens(server: ModelServer) -> None:
    async with client(server, key="user-key") as c:
        await c.chat.completions.create(**ASK)
    assert server.log[0].headers["authorization"] == "Bearer user-key"
    assert not [name for name in server.log[0].headers if name.startswith("x-agl") or name == "traceparent"]


# --------------------------------------------------------------------------------------------- what it says
async def test_attributes_of_a_call(server: ModelServer, recording: Recording) -> None:
    async with client(server) as c:
        with recording.active():
            answer = await c.chat.completions.create(**ASK, temperature=0.5, seed=7)
    (span,) = recording.calls
    assert span.name == semconv.CALL_SPAN and span.kind == "client"
    assert span.start_time <= span.end_time
    expected = {
        semconv.LAYER: "wire",
        semconv.OPERATION_NAME: "chat",
        semconv.REQUEST_MODEL: "policy",
        semconv.RESPONSE_ID: answer.id,
        semconv.FINISH_REASONS: ["stop"],
        semconv.INPUT_TOKENS: len(server.log[0].prompt_ids),
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        RETRIES: 0,
    }
    assert expected.items() <= span.attributes.items()
    assert semconv.INPUT_MESSAGES not in span.attributes  # the gateway has them


async def test_messages_travel_where_no_gateway_records_them(server: ModelServer) -> None:
    server.reply = script
    recording = Recording("far", None)
    async with client(server) as c:
        with recording.active():
            await tools_streamed(c)
            await tools(c)
    streamed, whole = (json.loads(span.attributes[semconv.OUTPUT_MESSAGES]) for span in recording.calls)
    assert streamed == whole
    text, call = whole[0]["parts"]
    assert text == {"type": "text", "content": "thinking…"}
    assert call["name"] == "add" and call["arguments"].startswith('{"a":  ')
    assert json.loads(recording.calls[0].attributes[semconv.INPUT_MESSAGES]) == ASK["messages"]


# ------------------------------------------------------------------------------------------------ failures
async def test_an_error_is_a_span_with_its_retries(server: ModelServer, recording: Recording) -> None:
    server.reply = lambda body: Reply(status=429, message="slow down", headers={"retry-after-ms": "1"})
    async with client(server, max_retries=2) as c:
        with recording.active(), pytest.raises(openai.RateLimitError):
            await c.chat.completions.create(**ASK)
    (call,) = recording.calls
    assert call.status == "error" and "slow down" in (call.status_message or "")
    assert call.attributes[semconv.EXCEPTION_TYPE] == "RateLimitError"
    assert call.attributes[RETRIES] == 2 and len(server.log) == 3


async def test_a_cancelled_call_is_a_span(server: ModelServer, recording: Recording) -> None:
    arrived = asyncio.Event()

    async def never(body: dict[str, Any]) -> str:
        arrived.set()
        await asyncio.Event().wait()
        return ""

    server.reply = never
    async with client(server) as c:
        with recording.active():
            call = asyncio.create_task(c.chat.completions.create(**ASK))
            await arrived.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
    (span,) = recording.calls
    assert span.status == "error" and span.attributes[semconv.EXCEPTION_TYPE] == "CancelledError"


@pytest.mark.parametrize("streamed", [False, True])
async def test_half_an_answer_is_an_error(server: ModelServer, recording: Recording, streamed: bool) -> None:
    server.reply = lambda body: Reply(message="word " * 20, fault="half-json")
    async with client(server, max_retries=0) as c:
        with recording.active(), pytest.raises(ValueError):
            answer = await c.chat.completions.create(**ASK, stream=streamed)
            async for _ in answer:
                pass
    assert [span.status for span in recording.calls] == ["error"]


async def test_a_stream_given_up_is_partial(server: ModelServer, recording: Recording) -> None:
    server.reply = lambda body: "word " * 20
    async with client(server) as c:
        with recording.active():
            chunks = await c.chat.completions.create(**ASK, stream=True)
            await anext(chunks)
            await anext(chunks)
            await chunks.close()
            del chunks
            gc.collect()
    (span,) = recording.calls
    assert span.attributes[PARTIAL] is True
    assert 0 < span.attributes[semconv.RESPONSE_COUNT] < len(server.log[0].answers[0].ids)


async def test_a_structured_answer_that_does_not_parse_is_still_recorded(
    server: ModelServer, recording: Recording
) -> None:
    server.reply = lambda body: "no json at all"
    async with client(server) as c:
        with recording.active(), pytest.raises(ValueError):
            await parse(c)
    (span,) = recording.calls
    assert span.status == "error"
    assert_same_tokens(span, server.log[0])


async def test_wrong_lengths_show_in_the_counts(server: ModelServer, recording: Recording) -> None:
    server.reply = lambda body: Reply(message="three", fault="wrong-lengths")
    async with client(server) as c:
        with recording.active():
            await create(c)
            await stream(c)
    for span in recording.calls:
        assert span.attributes[LOGPROB_COUNT] == span.attributes[semconv.RESPONSE_COUNT] - 1


async def test_missing_ids_are_missing(server: ModelServer, recording: Recording) -> None:
    server.reply = lambda body: Reply(message="x", fault="no-ids")
    async with client(server) as c:
        with recording.active():
            await create(c)
    (span,) = recording.calls
    assert span.status == "ok"
    assert not {semconv.TOKENS_DIGEST, semconv.PROMPT_COUNT, semconv.RESPONSE_COUNT} & span.attributes.keys()


@pytest.mark.parametrize("ids", [[2**40], ["a"], [1.5]])
async def test_ids_that_are_no_ids_are_counted(
    server: ModelServer, recording: Recording, monkeypatch: pytest.MonkeyPatch, ids: list[Any]
) -> None:
    async with client(server) as c:
        original = ChatCompletion.construct

        def construct(cls: Any, *args: Any, **values: Any) -> Any:
            return original(*args, **{**values, "prompt_token_ids": ids})

        monkeypatch.setattr(ChatCompletion, "construct", classmethod(construct))
        with recording.active():
            answer = await create(c)
    assert answer.choices
    assert COUNTS.snapshot() == {"bad-ids": 1}
    assert semconv.TOKENS_DIGEST not in recording.calls[0].attributes


async def test_equal_response_ids_stay_two_calls(server: ModelServer, recording: Recording) -> None:
    replies = iter(["first", Reply(message="second", fault="duplicate-id")])
    server.reply = lambda body: next(replies)
    async with client(server) as c:
        with recording.active():
            await create(c)
            await create(c)
    first, second = recording.calls
    assert first.attributes[semconv.RESPONSE_ID] == second.attributes[semconv.RESPONSE_ID]
    assert first.span_id != second.span_id
    assert_exact(recording, server.log)


async def test_a_broken_sink_breaks_no_call(server: ModelServer, recording: Recording) -> None:
    def sink(span: Any) -> None:
        raise OSError("disk full")

    recording.context.sink = sink
    async with client(server) as c:
        with recording.active():
            assert (await create(c)).choices
    assert COUNTS.snapshot() == {"sink-error": 1}
