"""Malformed requests and answers of an API format are refused or recorded with the reason."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest
from agl_gateway.apis.messages import MESSAGES
from agl_gateway.apis.responses import RESPONSES
from aiohttp import web
from core.gateway.conftest import chunks, whole
from hypothesis import given, settings, strategies as st
from marks import examples

from agentlightning.gateway import Upstream
from agentlightning.gateway.errors import RequestRefused
from agentlightning.types import AttemptStatus

USER = {"role": "user", "content": "hi"}
ASK = {"messages": [USER], "max_tokens": 20}
BOTH = pytest.mark.parametrize(
    ("path", "asked"), [("/responses", {"input": "hi", "messages": None}), ("/messages", ASK)]
)
WORDS = st.sampled_from(
    ["assistant", "user", "message", "text", "function", "function_call", "function_call_output", "x", "tool"]
) | st.sampled_from(["input_text", "json_schema", "namespace", "reasoning", "tool_result", "tool_use"])
NAMES = st.sampled_from(
    ["arguments", "call_id", "content", "edits", "format", "id", "input", "input_schema", "name", "output"]
) | st.sampled_from(["role", "schema", "summary", "text", "thinking", "tool_use_id", "tools", "type"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    "context_management",
    "conversation",
    "previous_response_id",
    "include",
    "input",
    "instructions",
    "max_tokens",
    "messages",
    "output_config",
]
FIELDS += [
    "reasoning",
    "stop",
    "stop_sequences",
    "stream",
    "system",
    "text",
    "thinking",
    "tool_choice",
    "tools",
]
ASKED = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6)
NOT_FOUND = ("previous_response_not_found", "conversation_not_found", "item_not_found")
CHAT = {
    "id": "c",
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
}


@settings(deadline=None, max_examples=examples(300))
@given(ASKED)
@pytest.mark.parametrize("api_format", [RESPONSES, MESSAGES], ids=["responses", "messages"])
def test_any_json_is_translated_or_refused(api_format, asked):
    asked = {"input": [USER], **asked} if api_format is RESPONSES else {**ASK, **asked}
    try:
        api_format.chat_body(asked)
    except RequestRefused as refused:
        assert refused.status == 400 or refused.reason in NOT_FOUND
        return
    assert b"".join(api_format.events(api_format.answer(asked, CHAT)))


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/responses", {"input": [{"type": {}, "content": "x"}]}),
        ("/responses", {"input": [{"role": "user", "content": [{"type": [], "text": "x"}]}]}),
        ("/messages", ASK | {"messages": [{"role": "user", "content": [{"type": {}}]}]}),
        ("/messages", ASK | {"system": [{"type": ["text"], "text": "x"}]}),
        ("/messages", ASK | {"tool_choice": {"type": []}}),
        ("/messages", ASK | {"context_management": {"edits": 3}}),
    ],
)
async def test_a_type_that_is_no_text_is_the_askers_fault(world, path, asked):
    answer = await world.post(asked, path=path)
    assert answer.status == 400, answer.raw
    assert sum(world.store.counted.values()) == 1


async def test_a_namespace_without_tools_is_none(world):
    asked = {"input": "hi", "messages": None, "tools": [{"type": "namespace", "name": "n"}]}
    assert (await world.post(asked, path="/responses")).status == 200


async def test_details_of_other_types_are_a_bad_answer(world):
    async def odd(request, body):
        answer = whole(body)
        answer["usage"]["prompt_tokens_details"] = 5
        return web.json_response(answer)

    world.engine.answer = odd
    answer = await world.post({"input": "hi", "messages": None}, path="/responses")
    assert answer.status == 502 and b"bad-answer" in answer.raw


async def test_a_replay_that_cannot_be_told_is_a_bad_answer(world):
    """Recorded as failed, and said; not an answer on record whose stream breaks off."""

    async def odd(request, body):
        answer = whole(body, tool=("f", {"a": 1}))
        return web.json_response(answer)

    world.engine.answer = odd
    answer = await world.post({"stream": True})
    assert answer.status == 502 and b"bad-answer" in answer.raw
    assert [call.status for call in world.store.calls] == ["error"]


# ---------------------------------------------------------------------------------------- tool calls' ids
def _numbered(answers):
    """An engine whose n-th answer calls a tool with the n-th (id, arguments)."""
    answers = iter(answers)

    async def answer(request, body):
        name, arguments = next(answers)
        out = whole(body, tool=("f", arguments), id=None)
        out["choices"][0]["message"]["tool_calls"][0]["id"] = name
        return web.json_response(out)

    return answer


async def _turns(world, n, key=None):
    """``n`` calls, each with the conversation so far; the last body that the engine got."""
    turns = [USER]
    for _ in range(n):
        answer = await world.post(ASK | {"messages": turns}, path="/messages", key=key)
        block = json.loads(answer.raw)["content"][0]
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        turns = [*turns, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    await world.post(ASK | {"messages": turns}, path="/messages", key=key)
    return [
        call["function"]["arguments"]
        for message in world.engine.bodies[-1]["messages"]
        for call in message.get("tool_calls") or ()
    ]


@pytest.mark.parametrize("name", [None, "", "call_0"])
async def test_arguments_survive_an_engine_that_does_not_number_its_calls(world, name):
    written = ['{"x":  1}', '{"x":  2}', '{ "x": 3 }']
    world.engine.answer = _numbered([(name, w) for w in [*written, "{}"]])
    assert await _turns(world, 3) == written


async def test_and_after_a_restart(world):
    written = ['{"x":  1}', '{"x":  2}']
    world.engine.answer = _numbered([(None, w) for w in [*written, "{}"]])
    world.store.put("ro-9", "at-9", AttemptStatus.RUNNING)
    key = world.keys.mint("ro-9", "at-9")
    posted = world.post

    async def post(*args, **kwargs):
        world.gateway._attempts._loaded.clear()  # as after a restart
        return await posted(*args, **kwargs)

    world.post = post
    assert await _turns(world, 2, key) == written


# ------------------------------------------------------------------------------------------ small things
async def test_a_forced_tool_ends_a_turn_by_its_use(world):
    """Engines call the end of a forced tool call ``stop``; an agent looks for ``tool_use``."""

    async def forced(request, body):
        answer = whole(body, tool=("f", "{}"))
        answer["choices"][0]["finish_reason"] = "stop"
        return web.json_response(answer)

    world.engine.answer = forced
    answer = await world.post(ASK, path="/messages")
    assert json.loads(answer.raw)["stop_reason"] == "tool_use"


async def test_all_stop_sequences_count(world):
    await world.post(ASK | {"stop_sequences": ["A"], "stop": ["B", "A"]}, path="/messages")
    await world.post(ASK | {"stop_sequences": ["A"], "stop": "B"}, path="/messages")
    assert [body["stop"] for body in world.engine.bodies] == [["A", "B"], ["A", "B"]]


@BOTH
@pytest.mark.parametrize(
    "body", ["<h1>engine-secret</h1>", '"engine-secret"', '{"error": "engine-secret"}', ""]
)
async def test_an_error_is_the_apis_own_whatever_the_engine_sent(world, path, asked, body):
    async def page(request, _):
        return web.Response(text=body, content_type="text/html", status=500)

    world.engine.answer = page
    answer = await world.post(asked, path=path)
    error = json.loads(answer.raw)["error"]
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.status == 500 and error["message"] and error["code"] == "http-500"
    assert b"engine-secret" not in answer.raw


async def test_two_keys_of_two_attempts_are_a_contradiction(world):
    other = world.open("2")
    answer = await world.post(ASK, path="/messages", headers={"x-api-key": other})
    assert answer.status == 409 and not world.store.calls
    assert world.store.counted["refused", "conflicting-identity", "at-1"] == 1
    assert other.encode() not in answer.raw
    for headers in ({"x-api-key": "agl-context"}, {"x-api-key": world.key}):
        assert (await world.post(ASK, path="/messages", headers=headers)).status == 200
    headers = {"Authorization": "Bearer agl-context", "x-api-key": world.key}
    assert (await world.post(ASK, path="/messages", headers=headers)).status == 200
    assert {call.attempt_id for call in world.store.calls} == {"at-1"}


def fails(tags):
    raise KeyError("side")


@pytest.mark.parametrize("world", [fails], indirect=True)
@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
async def test_what_a_predicate_of_the_users_breaks_is_counted(world, path):
    answer = await world.post(ASK, path=path)
    assert answer.status == 500 and b"bad-select" in answer.raw
    assert answer.headers["x-should-retry"] == "false"
    assert world.store.counted["refused", "bad-select", "at-1"] == 1


async def test_a_fault_of_ours_is_counted(world, monkeypatch):
    monkeypatch.setattr("agentlightning.gateway.request.policy_for", lambda *_: 1 / 0)
    answer = await world.post()
    assert answer.status == 500 and b"gateway-error" in answer.raw
    assert world.store.counted["refused", "gateway-error", "at-1"] == 1


async def test_who_has_no_policy_is_told_apart_within_bounds(world):
    """Names come from the agents: however many they are, the gateway keeps only so many."""
    world.gateway.remove_route("default")
    for policy in ("a", "b"):
        world.gateway.add_route(Upstream(policy=policy, url=world.engine.url, model="tiny"))
    metrics = world.gateway.metrics
    metrics.unrouted.update({f"agent {i}": 1 for i in range(metrics.NAMES)})
    key = world.open("6", tags={"agent": "one more"})
    assert (await world.post(key=key)).status == 404
    assert len(metrics.unrouted) == metrics.NAMES + 1 and metrics.unrouted["(others)"] == 1


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses"])
async def test_what_is_nested_beyond_telling_is_refused(world, path):
    deep = "[" * 960 + "]" * 960
    raw = {
        "/chat/completions": '{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": %s}',
        "/messages": '{"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "tool_use",'
        '"id": "i", "name": "f", "input": {"a": %s}}]}, {"role": "user", "content": "x"}]}',
        "/responses": '{"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"a": %s}}]}',
    }[path]
    answer = await world.post(path=path, data=(raw % deep).encode())
    assert answer.status in (200, 400), answer.raw
    assert len(world.store.calls) + sum(world.store.counted.values()) == 1


@pytest.mark.parametrize("api_format", [False, True])
async def test_a_fault_within_a_stream_ends_it_as_one(world, monkeypatch, api_format):
    """The head has left: no second answer may follow it, only the stream's own end with an error."""
    gate = asyncio.Event()

    def broken(*_):
        raise ZeroDivisionError

    async def slowly(request, body):
        if body.get("stream"):
            return await world.engine.stream(request, chunks(body), pause_after=1, gate=gate)
        await gate.wait()
        return await world.engine.default(request, body)

    monkeypatch.setattr("agentlightning.gateway.calls._choice_call", broken)
    world.engine.answer = slowly
    body = json.dumps({"model": "m", "stream": True, **ASK}).encode()
    path = "/v1/messages" if api_format else "/v1/chat/completions"
    at = urlsplit(world.url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.key}\r\n"
    head += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    began = await reader.readuntil(b"\r\n\r\n")
    gate.set()
    raw = began + await reader.read()
    writer.close()
    assert raw.count(b"HTTP/1.1 ") == 1 and b"gateway-error" in raw and b"[DONE]" not in raw
    assert [call.status for call in world.store.calls] == ["error"]
