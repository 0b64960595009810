from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.template import END, decode, encode, render

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
IDS = {"return_token_ids": True, "logprobs": True}


async def post(server: ScriptedModelServer, body: dict[str, Any], path: str = "chat/completions") -> Any:
    url = f"{server.url}/{path}"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        text = await response.text()
        if not body.get("stream") or response.status != 200:
            return response.status, json.loads(text)
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        assert events[-1] == "[DONE]"
        return response.status, [json.loads(event) for event in events[:-1]]


async def test_a_whole_answer_with_ids() -> None:
    async with ScriptedModelServer(lambda body: "Grüße") as server:
        status, answer = await post(server, {**ASK, **IDS})
    (exchange,) = server.log
    (choice,) = answer["choices"]
    assert status == 200 and choice["message"] == {"role": "assistant", "content": "Grüße"}
    assert answer["prompt_token_ids"] == exchange.prompt_ids == encode(render(ASK["messages"]))
    assert choice["token_ids"] == exchange.answers[0].ids == [*"Grüße".encode(), END]
    assert [t["logprob"] for t in choice["logprobs"]["content"]] == exchange.answers[0].logprobs
    assert all(p < 0 for p in exchange.answers[0].logprobs)
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
    assert answer["id"] == exchange.response_id


async def test_ids_only_when_asked() -> None:
    async with ScriptedModelServer() as server:
        _, answer = await post(server, ASK)
        server.ids = "never"
        _, never = await post(server, {**ASK, **IDS})
    assert "prompt_token_ids" not in answer and answer["choices"][0]["logprobs"] is None
    assert "token_ids" not in never["choices"][0]


def joined(chunks: list[dict[str, Any]], index: int) -> tuple[str, str, list[int], list[float], list[str]]:
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    content = "".join(c["delta"].get("content") or "" for c in choices)
    parts = [p for c in choices for p in c["delta"].get("tool_calls", ())]
    arguments = "".join(part["function"]["arguments"] for part in parts)
    ids = [i for c in choices for i in c.get("token_ids", ())]
    logprobs = [t["logprob"] for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    return content, arguments, ids, logprobs, [c["finish_reason"] for c in choices if c["finish_reason"]]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "short",
        "läng " * 9 + "<think>x</think> a < b",
        tool_call("add", '{"a":  "ü<|im_end|>"}', content="so"),
    ],
)
async def test_a_stream_put_together_is_the_whole(said: Any) -> None:
    async with ScriptedModelServer(lambda body: [said, "other"]) as server:
        _, chunks = await post(
            server, {**ASK, **IDS, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
        )
    (exchange,) = server.log
    for index, answer in enumerate(exchange.answers):
        content, arguments, ids, logprobs, finish = joined(chunks, index)
        assert content == (answer.message["content"] or "")
        calls = answer.message.get("tool_calls", ())
        assert arguments == "".join(call["function"]["arguments"] for call in calls)
        assert (ids, logprobs, finish) == (answer.ids, answer.logprobs, [answer.finish_reason])
    assert chunks[0]["prompt_token_ids"] == exchange.prompt_ids
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == sum(len(a.ids) for a in exchange.answers)
    assert decode(exchange.answers[0].ids).endswith("<|im_end|>")


async def test_completions_take_text_and_ids() -> None:
    async with ScriptedModelServer(lambda body: "there") as server:
        _, answer = await post(server, {"model": "m", "prompt": "hi", "logprobs": 0, **IDS}, "completions")
        await post(server, {"model": "m", "prompt": [104, 105]}, "completions")
    (choice,) = answer["choices"]
    assert choice["text"] == "there" and choice["prompt_token_ids"] == [104, 105]
    assert server.log[1].prompt_ids == [104, 105]
    assert choice["logprobs"]["token_logprobs"] == server.log[0].answers[0].logprobs


@pytest.mark.parametrize(
    ("reply", "status"), [(Reply(status=429, message="slow"), 429), (Reply(status=500), 500)]
)
async def test_errors(reply: Reply, status: int) -> None:
    async with ScriptedModelServer(lambda body: reply) as server:
        got, answer = await post(server, ASK)
    assert got == status == server.log[0].status and answer["error"]["message"]
    assert server.answered() == []


async def test_a_prompt_too_long_is_refused_as_engines_do() -> None:
    async with ScriptedModelServer(max_model_len=10) as server:
        status, answer = await post(server, ASK)
    assert status == 400 and "maximum context length" in answer["error"]["message"]


async def test_faults() -> None:
    faults = iter(["half-json", "duplicate-id", "no-ids", "wrong-lengths", None])
    async with ScriptedModelServer(lambda body: Reply(message="text", fault=next(faults))) as server:
        with pytest.raises(json.JSONDecodeError):
            await post(server, ASK)
        _, duplicate = await post(server, ASK)
        _, bare = await post(server, {**ASK, **IDS})
        _, short = await post(server, {**ASK, **IDS})
        _, good = await post(server, {**ASK, **IDS})
    assert duplicate["id"] == server.log[0].response_id
    assert "token_ids" not in bare["choices"][0]
    assert len(short["choices"][0]["logprobs"]["content"]) == len(short["choices"][0]["token_ids"]) - 1
    assert len({exchange.response_id for exchange in server.log[1:]}) == 4
    assert len(good["choices"][0]["logprobs"]["content"]) == len(good["choices"][0]["token_ids"])


async def test_a_script_that_raises_is_a_broken_server() -> None:
    def script(body: dict[str, Any]) -> Any:
        raise KeyError("not in the book")

    async with ScriptedModelServer(script) as server:
        status, answer = await post(server, ASK)
    assert status == 500 and "not in the book" in answer["error"]["message"]
    assert "KeyError" in (server.log[0].fault or "") and server.answered() == []


async def test_a_disconnect() -> None:
    async with ScriptedModelServer(lambda body: Reply(fault="disconnect")) as server:
        with pytest.raises(aiohttp.ClientError):
            await post(server, ASK)


async def test_scripts_may_be_async_and_slow() -> None:
    order: list[str] = []

    async def script(body: dict[str, Any]) -> Any:
        order.append("asked")
        await asyncio.sleep(0)
        return Reply(message="late", delay=0.01)

    async with ScriptedModelServer(script) as server:
        answers = await asyncio.gather(*(post(server, ASK) for _ in range(4)))
    assert len(order) == 4 and all(status == 200 for status, _ in answers)


def test_in_a_thread_of_its_own() -> None:
    with ScriptedModelServer(lambda body: "yes", model="policy") as server:

        async def ask() -> Any:
            async with aiohttp.ClientSession() as session, session.get(f"{server.url}/models") as response:
                return await response.json()

        assert asyncio.run(ask())["data"][0]["id"] == "policy"
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.url


async def test_it_can_be_started_again() -> None:
    server = ScriptedModelServer()
    for _ in range(2):
        await server.start()
        assert (await post(server, ASK))[0] == 200
        await server.stop()
    assert len(server.log) == 2
