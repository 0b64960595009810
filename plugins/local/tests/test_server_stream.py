"""Streams add up to the unstreamed answer of the same seed."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import openai
import pytest

from agl_local.generation.engine import Engine
from agl_local.http.app import create_app, serve
from agl_local.policy.folder import state
from plugins.local.tests.engine_fixtures import TOOL, small_policy

USER = {"role": "user", "content": "Add 1 and 22 für mich"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a":1,  "b": 22}}\n</tool_call>'
EXTRAS = {"logprobs": True, "return_token_ids": True}
REQUESTS = {
    "text": {"max_tokens": 30},
    "samples": {"max_tokens": 20, "n": 3},
    "greedy": {"max_tokens": 10, "temperature": 0},
    "stop": {"max_tokens": 60, "guided_choice": ["Größen, 温度 and 🐎 façades"], "stop": ["🐎 f"]},
    "unicode": {"max_tokens": 60, "guided_choice": ["Größen, 温度 and 🐎 façades"]},
    "call": {"max_tokens": 200, "tools": [TOOL], "guided_choice": [CALL]},
    "text and calls": {"max_tokens": 200, "tools": [TOOL], "guided_choice": [f"I add.\n{CALL}\n{CALL}"]},
    "malformed": {"max_tokens": 200, "tools": [TOOL], "guided_choice": ["a <tool_call>{oops}</tool_call> b"]},
    "cut": {"max_tokens": 12, "tools": [TOOL], "guided_choice": [CALL]},
    "almost": {"max_tokens": 200, "tools": [TOOL], "guided_choice": ["a <tool b </tool_call>  "]},
}


@pytest.fixture
async def server(policy):
    with Engine(policy, slots=8, max_len=320, name="tiny") as engine:
        runner, address = await serve(create_app({"tiny": engine}))
        async with aiohttp.ClientSession(address) as session:
            yield session, engine, address
        await runner.cleanup()


async def events(session, path, body):
    async with session.post(path, json={**body, "stream": True}) as answer:
        assert answer.status == 200 and answer.content_type == "text/event-stream"
        lines = (await answer.text()).split("\n\n")
    assert lines[-1] == "" and lines[-2] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines[:-1])
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def add_up(chunks, chat):
    """One choice per index, in the shape of the unstreamed answer's."""
    out = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = out.setdefault(
                part["index"],
                {"content": "", "calls": [], "token_ids": [], "logprobs": [], "finish_reason": None,
                 "stop_reason": None, "errors": None},
            )  # fmt: skip
            delta = part["delta"] if chat else {"content": part["text"]}
            choice["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                assert call.pop("index") == len(choice["calls"])
                choice["calls"].append(call)
            choice["token_ids"] += part.get("token_ids") or []
            if part["logprobs"]:
                choice["logprobs"] += part["logprobs"]["content" if chat else "token_logprobs"]
            for key in ("finish_reason", "stop_reason"):
                choice[key] = part.get(key) or choice[key]
            choice["errors"] = part.get("tool_call_errors") or choice["errors"]
    return [out[index] for index in sorted(out)]


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_chat_stream_is_the_unstreamed_answer(server, name):
    session, _, _ = server
    body = {"messages": [USER], "seed": 7, **EXTRAS, **REQUESTS[name], "top_logprobs": 1}
    async with session.post("/v1/chat/completions", json=body) as answer:
        whole = await answer.json()
    chunks = await events(session, "/v1/chat/completions", body)
    assert all(c["object"] == "chat.completion.chunk" and c["id"] == chunks[0]["id"] for c in chunks)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["policy_version"] == whole["policy_version"]
    for got, want in zip(add_up(chunks, chat=True), whole["choices"], strict=True):
        message = want["message"]
        assert got["content"] == (message["content"] or "")
        assert got["calls"] == message.get("tool_calls", [])
        assert got["token_ids"] == want["token_ids"]
        assert [e["token"] for e in got["logprobs"]] == [e["token"] for e in want["logprobs"]["content"]]
        assert [e["logprob"] for e in got["logprobs"]] == pytest.approx(
            [e["logprob"] for e in want["logprobs"]["content"]], abs=1e-5
        )
        assert (got["finish_reason"], got["stop_reason"]) == (want["finish_reason"], want["stop_reason"])
        assert got["errors"] == want.get("tool_call_errors")


async def test_a_completion_stream_is_the_unstreamed_answer(server):
    session, _, _ = server
    body = {"prompt": ["The user", "Größen"], "n": 2, "max_tokens": 9, "seed": 3, **EXTRAS}
    async with session.post("/v1/completions", json=body) as answer:
        whole = await answer.json()
    chunks = await events(session, "/v1/completions", body)
    firsts = {c["choices"][0]["index"]: c["choices"][0]["prompt_token_ids"] for c in chunks[:4]}
    assert firsts == {c["index"]: c["prompt_token_ids"] for c in whole["choices"]}
    for got, want in zip(add_up(chunks, chat=False), whole["choices"], strict=True):
        assert got["content"] == want["text"] and got["token_ids"] == want["token_ids"]
        assert got["logprobs"] == pytest.approx(want["logprobs"]["token_logprobs"], abs=1e-5)
        assert got["finish_reason"] == want["finish_reason"]


async def test_usage_comes_last_when_asked_for(server):
    session, _, _ = server
    body = {"messages": [USER], "max_tokens": 5, "n": 2, "ignore_eos": True}
    chunks = await events(
        session, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
    )
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 10
    assert all("usage" not in c for c in await events(session, "/v1/chat/completions", body))


async def test_the_openai_sdk_reads_the_stream(server):
    _, _, address = server
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[USER], stream=True, tools=[TOOL], seed=1, max_tokens=200,
            extra_body={"guided_choice": [CALL], "return_token_ids": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.function.arguments for call in calls] == ['{"a":1,  "b": 22}']
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_a_failure_under_way_is_an_error_event(server, monkeypatch):
    session, engine, _ = server
    broken = {name: t * float("nan") for name, t in state(small_policy().model).items()}
    await asyncio.to_thread(engine.load_weights, broken, 1)
    async with session.post("/v1/chat/completions", json={"messages": [USER], "stream": True}) as answer:
        lines = (await answer.text()).strip().split("\n\n")
    assert "no finite logits" in json.loads(lines[-1].removeprefix("data: "))["error"]["message"]


async def test_a_client_that_leaves_a_stream_frees_its_slot(server):
    session, engine, _ = server
    body = {"messages": [USER], "stream": True, "max_tokens": 280, "ignore_eos": True, "n": 8}
    async with session.post("/v1/chat/completions", json=body) as answer:
        await answer.content.readline()
        engine.pause("hold")
        answer.close()
    while engine.status()["cancelled"] == 0:
        await asyncio.sleep(0)
    engine.resume()
    async with session.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 1}) as answer:
        assert answer.status == 200
    assert engine.status()["running"] == 0
