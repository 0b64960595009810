"""Streams: passed through or replayed, the end held until the record is committed."""

import asyncio
import json

import pytest
from aiohttp import web

from agentlightning.gateway import Upstream
from agentlightning.store.base import StoreError

from .conftest import PROMPT, chunks, events, tokens_of, whole


@pytest.fixture
def keep_alive():
    return 0.02  # a test of this file waits for a comment


TOOL = ("calculator", '{"expression": "1 + 1"}')
STREAM = {"stream": True}
TOOLS = {"tools": [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]}


def route(world, **fields):
    world.gateway.add_route(
        Upstream(**({"url": world.engine.url, "model": "tiny", "api_key": "engine-secret"} | fields))
    )


async def open_stream(world, body=None, key=None):
    """The response of a streamed call, unread."""
    body = {"model": "m", "messages": [], "stream": True} | (body or {})
    headers = {"Authorization": f"Bearer {key or world.key}"}
    return await world.session.post(world.url + "/chat/completions", json=body, headers=headers)


async def test_passed_through_unchanged(world):
    route(world, stream_ids=True)
    got = await world.post(STREAM)
    sent = world.engine.bodies[0]
    assert sent["stream_options"] == {"include_usage": True} and sent["return_token_ids"] is True
    assert got.headers["content-type"].startswith("text/event-stream")
    assert events(got.raw) == [*chunks({"model": "tiny"}), "[DONE]"], "the usage chunk is the gateway's own"
    (call,) = world.store.calls
    ids, logprobs = tokens_of("hello there world")
    assert (call.prompt_ids, call.response_ids, call.logprobs) == (PROMPT, ids, logprobs)
    assert (call.prompt_tokens, call.completion_tokens, call.finish_reason, call.status) == (
        3,
        3,
        "stop",
        "ok",
    )
    assert call.response == {"role": "assistant", "content": "hello there world"}
    assert call.request["stream"] is True and "stream_options" not in call.request


async def test_usage_reaches_an_agent_that_asked(world):
    route(world, stream_ids=True)
    got = events((await world.post(STREAM | {"stream_options": {"include_usage": True}})).raw)
    assert got[-2]["usage"]["prompt_tokens"] == 3 and got[-1] == "[DONE]"


async def test_chunks_leave_as_they_arrive_and_the_end_waits_for_the_record(world):
    route(world, stream_ids=True)
    go, world.store.hold = asyncio.Event(), asyncio.Event()

    async def answer(request, body):
        return await world.engine.stream(request, chunks(body), pause_after=1, gate=go)

    world.engine.answer = answer
    response = await open_stream(world)
    early = b""
    while b"hello" not in early:
        early += await response.content.readany()
    go.set()
    await world.store.waiting.wait()
    while b"world" not in early:
        early += await response.content.readany()
    assert not world.store.calls and b'"stop"' not in early and b"DONE" not in early
    world.store.hold.set()
    assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert len(world.store.calls) == 1


@pytest.mark.parametrize("stream_ids", [True, False])
async def test_tool_calls(world, stream_ids):
    route(world, stream_ids=stream_ids)
    world.engine.options = {"text": "a b c", "tool": TOOL}
    got = events((await world.post(STREAM | TOOLS)).raw)
    names = [
        t["function"].get("name")
        for e in got[:-1]
        for c in e["choices"]
        for t in c["delta"].get("tool_calls", [])
    ]
    assert names[0] == "calculator"
    (call,) = world.store.calls
    assert call.response["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": TOOL[0], "arguments": TOOL[1]}}
    ]
    assert call.finish_reason == "tool_calls" and len(call.response_ids) == 3


async def test_replay_records_and_says_what_passing_through_does(world):
    seen = []
    for stream_ids in (True, False):
        route(world, stream_ids=stream_ids)
        got = events((await world.post(STREAM | {"stream_options": {"include_usage": True}})).raw)
        deltas = [c for e in got[:-1] for c in e["choices"]]
        seen.append(
            (
                "".join(c["delta"].get("content") or "" for c in deltas),
                [t for c in deltas for t in c.get("token_ids", [])],
                [p["logprob"] for c in deltas for p in (c.get("logprobs") or {}).get("content", [])],
                [e["prompt_token_ids"] for e in got[:-1] if "prompt_token_ids" in e],
                [c["finish_reason"] for c in deltas if c.get("finish_reason")],
                got[-2]["usage"]["completion_tokens"],
                got[-1],
            )
        )
    assert seen[0] == seen[1]
    a, b = world.store.calls
    assert [
        getattr(a, f) for f in ("prompt_ids", "response_ids", "logprobs", "response", "finish_reason")
    ] == [getattr(b, f) for f in ("prompt_ids", "response_ids", "logprobs", "response", "finish_reason")]
    assert (await world.metrics())["streams"] == {"passed": 1, "replayed": 1}
    assert world.engine.bodies[1]["stream"] is False and "stream_options" not in world.engine.bodies[1]


async def test_an_inexact_stream_is_recorded_so_and_the_next_is_replayed(world):
    world.engine.stream_options = {"ids": False}
    assert (await world.post(STREAM)).status == 200
    await world.post(STREAM)
    first, second = world.store.calls
    assert (first.has_ids, first.masked) == (False, "no-ids")
    assert (second.has_ids, second.masked) == (True, None)
    assert [b["stream"] for b in world.engine.bodies] == [True, False]
    await world.post(STREAM | TOOLS)
    assert world.engine.bodies[2]["stream"] is True, "streams with tools are another matter"
    assert (await world.metrics())["replayed_kinds"] == {"default": ["without tools", "with tools"]}


async def test_frozen_routes_always_pass_through(world):
    route(world, trainable=False)
    world.engine.stream_options = {"ids": False}
    for _ in range(2):
        await world.post(STREAM)
    assert [b["stream"] for b in world.engine.bodies] == [True, True]
    assert "stream_options" not in world.engine.bodies[0]
    assert world.store.calls[0].masked is None


async def test_keep_alive_comments_while_the_engine_is_silent(world):
    route(world, stream_ids=False)
    go = asyncio.Event()

    async def answer(request, body):
        await go.wait()
        return web.json_response(whole(body))

    world.engine.answer = answer
    response = await open_stream(world)
    assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
    go.set()
    raw = await response.read()
    assert events(raw)[-1] == "[DONE]" and len(world.store.calls) == 1


async def test_an_engine_error_after_keep_alives_becomes_an_event(world):
    route(world, stream_ids=False)
    go = asyncio.Event()

    async def answer(request, body):
        await go.wait()
        return web.json_response({"error": {"message": "too much", "code": "busy"}}, status=429)

    world.engine.answer = answer
    response = await open_stream(world)
    await response.content.readuntil(b"\n\n")
    go.set()
    assert events(await response.read())[0]["error"]["message"] == "too much"
    assert world.store.calls[0].error == "HTTP 429 busy: too much"


@pytest.mark.parametrize("way", ["garbage", "cut", "error event", "abort", "nothing"])
async def test_a_stream_that_breaks(world, way):
    route(world, stream_ids=True)

    async def answer(request, body):
        items = chunks(body)[:2]
        if way == "garbage":
            items.append(b"data: {half\n\n")
        elif way == "error event":
            items.append({"error": {"message": "engine-secret: out of memory", "code": 500}})
        elif way == "nothing":
            items = []
        out = await world.engine.stream(request, items, done=False)
        if way == "abort":
            await out.write(b"data: {")
            request.transport.abort()
        return out

    world.engine.answer = answer
    got = events((await world.post(STREAM)).raw)
    assert "error" in got[-1] and "[DONE]" not in got
    (call,) = world.store.calls
    assert call.status == "error" and call.error
    if way != "nothing":
        assert call.response_ids == tokens_of("hello")[0], "what arrived is kept"
    if way == "error event":
        assert got[-1]["error"]["message"] == "***: out of memory"
        assert call.error == "engine-error: ***: out of memory"


@pytest.mark.parametrize("stream_ids", [True, False])
async def test_a_failing_store_withholds_the_end(world, stream_ids):
    route(world, stream_ids=stream_ids)
    world.store.fail = StoreError("disk full")
    got = await world.post(STREAM)
    if stream_ids:
        assert events(got.raw)[-1]["error"]["code"] == "store-failed" and b"DONE" not in got.raw
    else:
        assert got.status == 503
    assert (await world.metrics())["refused"] == {"store-failed": 1}


async def test_json_for_a_stream_is_replayed(world):
    async def answer(request, body):
        return web.json_response(whole(body))

    world.engine.answer = answer
    got = await world.post(STREAM)
    assert events(got.raw)[-1] == "[DONE]" and world.store.calls[0].has_ids


@pytest.mark.parametrize("kind", ["passed", "replayed", "plain"])
async def test_hanging_up_stops_the_engine_and_is_recorded(world, kind):
    route(world, stream_ids=kind == "passed")

    async def answer(request, body):
        if body.get("stream"):
            return await world.engine.stream(request, chunks(body), pause_after=2, gate=asyncio.Event())
        await asyncio.Event().wait()

    world.engine.answer = answer
    if kind == "plain":
        asking = asyncio.create_task(world.post())
        await world.engine.arrived.wait()
        asking.cancel()
    else:
        response = await open_stream(world)
        seen = b""
        while (b"there" if kind == "passed" else b"keep-alive") not in seen:
            seen += await response.content.readany()
        response.close()
    await world.engine.cancelled.wait()
    await world.store.waiting.wait()
    (call,) = world.store.calls
    assert (call.status, call.error) == ("cancelled", "the agent hung up")
    assert call.response_ids == (tokens_of("hello there")[0] if kind == "passed" else None)
    metrics = await world.metrics()
    assert (metrics["in_flight"], metrics["calls"]) == (0, {"cancelled": 1})


async def test_streamed_completions(world):
    async def answer(request, body):
        head = {"id": "cmpl-1", "object": "text_completion"}
        ids, logprobs = tokens_of("a bb")
        items = [
            head | {"choices": [{"index": 0, "text": "a", "token_ids": ids[:1], "prompt_token_ids": PROMPT,
                                 "logprobs": {"token_logprobs": logprobs[:1]}}]},
            head | {"choices": [{"index": 0, "text": " bb", "token_ids": ids[1:], "finish_reason": "length",
                                 "logprobs": {"token_logprobs": logprobs[1:]}}]},
        ]  # fmt: skip
        return await world.engine.stream(request, items)

    world.engine.answer = answer
    await world.post(STREAM | {"prompt": "x"}, path="/completions")
    (call,) = world.store.calls
    ids, logprobs = tokens_of("a bb")
    assert (call.response, call.prompt_ids, call.response_ids) == ({"text": "a bb"}, PROMPT, ids)
    assert (call.logprobs, call.finish_reason) == (logprobs, "length")


async def test_two_streamed_choices(world):
    async def answer(request, body):
        one = chunks(body)[:-1]
        two = json.loads(json.dumps(one))
        for item in two:
            for choice in item["choices"]:
                choice["index"] = 1
        return await world.engine.stream(request, [x for pair in zip(one, two, strict=True) for x in pair])

    world.engine.answer = answer
    got = await world.post(STREAM | {"n": 2})
    assert events(got.raw)[-1] == "[DONE]"
    assert [(c.choice, c.response["content"], c.sequence) for c in world.store.calls] == [
        (0, "hello there world", 0),
        (1, "hello there world", 0),
    ]
