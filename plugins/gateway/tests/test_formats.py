"""Translated APIs through the gateway: the same records, keys, refusals and streams as any other call."""

import asyncio
import json

import msgspec
import pytest
from agl_gateway.apis.history import History
from agl_gateway.apis.messages import MESSAGES as MESSAGES_API
from agl_gateway.apis.responses import RESPONSES as RESPONSES_API
from agl_gateway.edits.section import RouteSection
from aiohttp import web
from core.gateway.conftest import PROMPT, tokens_of, whole

from agentlightning.gateway import AttemptInfo, SamplingPolicy, Upstream
from agentlightning.types import AttemptStatus


@pytest.fixture
def keep_alive():
    return 0.02  # a test of this file waits for a comment


WORDS = "hello there world"
RESPONSES = {"input": "hi", "messages": None}
MESSAGES = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
BOTH = pytest.mark.parametrize(
    ("path", "asked"), [("/responses", RESPONSES), ("/messages", MESSAGES)], ids=["responses", "messages"]
)
TOOL = ("calculator", '{"x":  "1 + 1"}')


def sent_events(raw):
    """Name and data of each event; comments and pings apart."""
    out = []
    for block in raw.decode().split("\n\n"):
        if block.startswith("event: "):
            name, data = block.removeprefix("event: ").split("\ndata: ")
            if name != "ping":
                out.append((name, json.loads(data)))
    return out


def said(answer):
    """The text of an answer of either API."""
    parts = answer["content"] if answer.get("type") == "message" else answer["output"][0]["content"]
    return parts[0]["text"]


@BOTH
async def test_a_call_is_recorded_as_its_translation(world, path, asked):
    answer = await world.post(asked, path=path)
    body = json.loads(answer.raw)
    assert answer.status == 200 and said(body) == WORDS
    assert (body["prompt_token_ids"], body["token_ids"]) == (PROMPT, tokens_of(WORDS)[0])
    (call,) = world.store.calls
    assert call.api == "chat" and call.edited == {"api": path[1:]}
    assert call.request["messages"] == [{"role": "user", "content": "hi"}]
    assert call.response["content"] == WORDS and call.response_id == body["id"]
    assert call.response_ids == tokens_of(WORDS)[0] and call.policy == "default"
    (sent,) = world.engine.bodies
    assert sent["return_token_ids"] is True and not sent.get("stream")
    assert (await world.metrics())["translated"] == {path[1:]: 1}


@BOTH
async def test_sampling_and_seed_are_those_of_the_chat_call(world, path, asked):
    world.gateway.policy_sampling("default", SamplingPolicy(temperature=0.7))
    await world.post(
        {"messages": [{"role": "user", "content": "hi"}]}
        | ({} if path == "/responses" else {"max_tokens": 20})
    )
    other = world.open("2", seed=7)
    await world.post(asked | {"temperature": 0.1}, path=path, key=other)
    chat, api_format = world.store.calls
    assert chat.sampling == api_format.sampling and api_format.asked == {"temperature": 0.1}


@BOTH
async def test_a_stream_is_replayed_after_the_record(world, path, asked):
    world.store.hold = asyncio.Event()
    asking = asyncio.ensure_future(world.post(asked | {"stream": True}, path=path))
    await world.store.waiting.wait()
    assert not asking.done()
    world.store.hold.set()
    answer = await asking
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = sent_events(answer.raw)
    names = [name for name, _ in events]
    assert all(name == event["type"] for name, event in events)
    if path == "/responses":
        assert (names[0], names[-1]) == ("response.created", "response.completed")
        assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
        assert said(events[-1][1]["response"]) == WORDS
        assert events[-1][1]["response"]["token_ids"] == tokens_of(WORDS)[0]
    else:
        assert (names[0], names[-1]) == ("message_start", "message_stop")
        assert events[0][1]["message"]["token_ids"] == tokens_of(WORDS)[0]
    assert world.store.calls[0].request["stream"] is True
    assert (await world.metrics())["streams"] == {"replayed": 1}


@BOTH
async def test_a_waiting_stream_is_kept_alive(world, path, asked):
    waited = asyncio.Event()

    async def slowly(request, body):
        await waited.wait()
        return await world.engine.default(request, body)

    world.engine.answer = slowly
    async with world.session.post(
        world.url + path,
        data=json.dumps({"model": "m", **asked, "stream": True}),
        headers={"Authorization": f"Bearer {world.key}"},
    ) as response:
        first = await response.content.readuntil(b"\n\n")
        assert first == (MESSAGES_API if path == "/messages" else RESPONSES_API).keep_alive
        waited.set()
        rest = await response.read()
    assert WORDS.split()[0] in rest.decode()


@BOTH
async def test_what_fails_after_the_head_is_an_event(world, path, asked):
    waited = asyncio.Event()

    async def broken(request, body):
        await waited.wait()
        return web.json_response({"error": {"message": "out of memory"}}, status=500)

    world.engine.answer = broken
    async with world.session.post(
        world.url + path,
        data=json.dumps({"model": "m", **asked, "stream": True}),
        headers={"Authorization": f"Bearer {world.key}"},
    ) as response:
        await response.content.readuntil(b"\n\n")
        waited.set()
        (name, event) = sent_events(await response.read())[-1]
    assert name == "error" and "out of memory" in event["error"]["message"]
    assert world.store.calls[0].status == "error"


@BOTH
async def test_refused_fields_are_counted_for_the_attempt(world, path, asked):
    answer = await world.post(asked | {"whatever": 1}, path=path)
    error = json.loads(answer.raw)["error"]
    assert answer.status == 400 and "whatever is not served here" in error["message"]
    assert error["code"] == "unsupported-field" and error["type"] == "invalid_request_error"
    assert json.loads(answer.raw).get("type") == (None if path == "/responses" else "error")
    assert world.store.counted["refused", "unsupported-field", "at-1"] == 1 and not world.store.calls


@BOTH
async def test_over_length_is_said_as_the_sdks_know_it(world, path, asked):
    async def long(request, body):
        return web.json_response({"error": {"message": "maximum context length is 9"}}, status=400)

    world.engine.answer = long
    answer = await world.post(asked, path=path)
    error = json.loads(answer.raw)["error"]
    assert answer.status == 400 and error["code"] == "context_length_exceeded"
    assert error["message"].startswith("prompt is too long") is (path == "/messages")
    assert world.store.calls[0].masked == "over-length"
    assert world.store.calls[0].edited == {"api": path[1:], "over_length": "error"}


@BOTH
async def test_a_closed_attempt_and_an_unreachable_engine(world, path, asked):
    await world.engine.runner.cleanup()
    answer = await world.post(asked, path=path)
    assert answer.status == 502 and json.loads(answer.raw)["error"]["code"] == "engine-unreachable"
    await world.gateway.close_attempt("at-1")
    answer = await world.post(asked, path=path)
    assert answer.status == 409 and answer.headers["x-should-retry"] == "false"
    assert world.store.counted["refused", "attempt-ended", "at-1"] == 1


@BOTH
async def test_a_lost_record_withholds_the_answer(world, path, asked):
    world.store.fail = RuntimeError("disk full")
    answer = await world.post(asked, path=path)
    assert answer.status == 503 and WORDS not in answer.raw.decode()


@BOTH
async def test_an_agent_that_hangs_up_is_recorded(world, path, asked):
    never = asyncio.Event()

    async def silent(request, body):
        await never.wait()

    world.engine.answer = silent
    asking = asyncio.ensure_future(world.post(asked, path=path))
    await world.engine.arrived.wait()
    asking.cancel()
    await world.engine.cancelled.wait()
    await world.gateway.close_attempt("at-1", grace=2.0)
    assert [call.status for call in world.store.calls] == ["cancelled"]
    assert world.store.calls[0].edited == {"api": path[1:]}


@BOTH
async def test_reasoning_is_apart_only_where_the_route_splits(world, path, asked):
    world.engine.options = {"text": "<think> hm </think> yes"}
    kept = json.loads((await world.post(asked, path=path)).raw)
    assert said(kept) == "<think> hm </think> yes"
    world.gateway.add_route(
        Upstream(url=world.engine.url, model="tiny", settings=RouteSection(reasoning="split"))
    )
    split = json.loads((await world.post(asked, path=path)).raw)
    first, last = split["content"] if path == "/messages" else split["output"]
    assert (first["type"], last["type"]) in (("thinking", "text"), ("reasoning", "message"))
    assert "yes" in json.dumps(last) and "think>" not in json.dumps(
        split["content" if path == "/messages" else "output"]
    )
    assert world.store.calls[1].edited == {"api": path[1:], "reasoning": "split"}


@BOTH
async def test_guided_choice_is_trained_with_its_mask(world, path, asked):
    world.gateway.policy_sampling("default", SamplingPolicy())

    async def guided(request, body):
        assert body["structured_outputs"] == {"choice": [WORDS, "no"]}
        world.engine.options = {"guided_choice_ids": [tokens_of(WORDS)[0], [9]]}
        return await world.engine.default(request, body)

    world.engine.answer = guided
    await world.post(asked | {"guided_choice": [WORDS, "no"]}, path=path)
    (call,) = world.store.calls
    assert call.allowed == [tokens_of(WORDS)[0], [9]] and call.masked is None


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [{"id": "x"}]},
        {"tool_calls": [None]},
        {"tool_calls": 3},
        {"tool_calls": [{"function": 3}]},
        {"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"tool_calls": [{"id": "x", "function": {"name": 3, "arguments": "{}"}}]},
        {"content": [{"type": "text", "text": "x"}]},
        {"content": 7},
        {"refusal": {"why": 1}},
    ],
)
async def test_a_message_out_of_shape_is_a_bad_answer(world, path, asked, stream, message):
    async def odd(request, body):
        answer = whole(body)
        answer["choices"][0]["message"] = {"role": "assistant", "content": None, **message}
        return web.json_response(answer)

    world.engine.answer = odd
    answer = await world.post(asked | {"stream": stream}, path=path)
    assert b'"code":"bad-answer"' in answer.raw  # as an event, where the head has left already
    assert answer.status == 502 or stream
    assert [(call.status, call.error.split(":")[0]) for call in world.store.calls] == [
        ("error", "bad-answer")
    ]


@BOTH
@pytest.mark.parametrize("arguments", ['{"a": ' * 4000, '{"a": "\\ud800"}', '{"a": 1' + "0" * 40 + "}", "{"])
async def test_arguments_that_are_no_json_are_passed_on(world, path, asked, arguments):
    world.engine.options = {"tool": ("calculator", arguments)}
    answer = await world.post(asked, path=path)
    assert answer.status == 200
    assert world.store.calls[0].response["tool_calls"][0]["function"]["arguments"] == arguments


@BOTH
async def test_an_answer_without_an_id_gets_one(world, path, asked):
    world.engine.options = {"id": None}
    name = json.loads((await world.post(asked, path=path)).raw)["id"]
    assert name == ("resp_at-1-0" if path == "/responses" else "at-1-0")
    assert world.store.calls[0].response_id == name


@BOTH
async def test_every_path_is_served_without_its_version_too(world, path, asked):
    world.url = world.url.removesuffix("/v1")
    assert said(json.loads((await world.post(asked, path=path)).raw)) == WORDS
    assert (await world.post(path="/chat/completions")).status == 200
    answer = await world.post(asked | {"whatever": 1}, path=path)
    assert json.loads(answer.raw).get("type") == (None if path == "/responses" else "error")


# -------------------------------------------------------------------------------------------------- messages
async def test_arguments_survive_that_they_are_parsed(world):
    world.engine.options = {"tool": TOOL}
    block = json.loads((await world.post(MESSAGES, path="/messages")).raw)["content"][0]
    assert block["input"] == {"x": "1 + 1"}
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "2"}
    turns = [
        *MESSAGES["messages"],
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    await world.post(MESSAGES | {"messages": turns}, path="/messages")
    assert world.engine.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == TOOL[1]


async def test_arguments_are_known_of_an_attempt_opened_elsewhere(world):
    world.engine.options = {"tool": TOOL}
    world.store.put("ro-9", "at-9", AttemptStatus.RUNNING)
    key = world.keys.mint("ro-9", "at-9")
    block = json.loads((await world.post(MESSAGES, path="/messages", key=key)).raw)["content"][0]
    world.gateway._attempts._loaded.clear()  # as after a restart
    turns = [*MESSAGES["messages"], {"role": "assistant", "content": [block]}, *MESSAGES["messages"]]
    await world.post(MESSAGES | {"messages": turns}, path="/messages", key=key)
    assert world.engine.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == TOOL[1]


async def test_the_key_may_come_as_anthropics_sdk_sends_it(world):
    for headers in (
        {"Authorization": "", "x-api-key": world.key},
        {"Authorization": "Bearer sk-users-own", "x-api-key": world.key},
        {"Authorization": f"Bearer {world.key}", "x-api-key": "sk-users-own"},
    ):
        assert (await world.post(MESSAGES, path="/messages", headers=headers)).status == 200
    answer = await world.post(MESSAGES, path="/messages", headers={"Authorization": ""})
    assert answer.status == 401 and json.loads(answer.raw)["error"]["type"] == "authentication_error"
    other = world.open("2")
    headers = {"Authorization": "", "x-api-key": other, "x-agl-attempt": "at-1"}
    assert (await world.post(MESSAGES, path="/messages", headers=headers)).status == 409


async def test_tokens_are_counted_by_the_engine(world):
    asked = []

    async def tokenize(request):
        asked.append(await request.json())
        return web.json_response({"count": 17, "max_model_len": 99})

    runner = web.AppRunner(app := web.Application())
    app.router.add_post("/tokenize", tokenize)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    world.gateway.add_route(Upstream(url=url, model="tiny"))
    tools = [{"name": "add", "input_schema": {"type": "object"}}]
    body = {"messages": MESSAGES["messages"], "system": "be kind", "tools": tools}
    answer = await world.post(body, path="/messages/count_tokens")
    assert (answer.status, json.loads(answer.raw)) == (200, {"input_tokens": 17})
    assert [m["role"] for m in asked[0]["messages"]] == ["system", "user"] and asked[0]["tools"]
    assert not world.store.calls
    await runner.cleanup()
    assert (await world.post(body, path="/messages/count_tokens")).status == 502


async def test_an_engine_that_cannot_count_is_said(world):
    answer = await world.post(MESSAGES, path="/messages/count_tokens")
    error = json.loads(answer.raw)
    assert answer.status == 404 and error["type"] == "error" and error["error"]["code"] == "cannot-count"
    answer = await world.post({"messages": 3}, path="/messages/count_tokens")
    assert answer.status == 400


async def test_a_batch_is_refused_in_the_apis_own_shape(world):
    answer = await world.post(MESSAGES, path="/messages/batches")
    assert answer.status == 404 and msgspec.json.decode(answer.raw)["error"]["type"] == "not_found_error"


async def test_frozen_policies_answer_too(world):
    world.gateway.add_route(Upstream(policy="judge", url=world.engine.url, model="big", trainable=False))
    key = world.open("2", policies={"judge": "judge"})
    answer = await world.post(MESSAGES | {"model": "judge", "stream": True}, path="/messages", key=key)
    assert sent_events(answer.raw)[-1][0] == "message_stop"
    assert "return_token_ids" not in world.engine.bodies[0]


async def test_a_policy_map_chooses_for_translated_apis_as_well(world):
    world.gateway.add_route(Upstream(policy="wolves", url=world.engine.url, model="wolf"))
    info = AttemptInfo(
        rollout_id="ro-3", attempt_id="at-3", policies={"wolf": "wolves"}, tags={"agent": "wolf"}
    )
    key = world.gateway.open_attempt(info)
    await world.post(RESPONSES, path="/responses", key=key)
    assert world.store.calls[0].policy == "wolves"


async def test_an_attempt_that_ends_while_its_answers_are_read_calls_no_more(world):
    reading, go = asyncio.Event(), asyncio.Event()
    query_calls = world.store.query_calls

    async def slowly(rollout_id, attempt_id="latest"):
        reading.set()
        await go.wait()
        return await query_calls(rollout_id, attempt_id)

    answer = await world.post({"messages": None, "input": "hi"}, path="/responses")
    history = world.gateway._attempts._open["at-1"].part(History)
    history._drop(name := json.loads(answer.raw)["id"])
    world.store.query_calls = slowly
    more = {"messages": None, "input": "more", "previous_response_id": name}
    asking = asyncio.create_task(world.post(more, path="/responses"))
    await reading.wait()
    await world.gateway.close_attempt("at-1")
    go.set()
    got = await asking
    assert (got.status, json.loads(got.raw)["error"]["code"]) == (409, "attempt-ended")
    assert len(world.store.calls) == len(world.engine.bodies) == 1
