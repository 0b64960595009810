"""One call: recorded exactly, before the answer; errors recorded and passed on."""

import asyncio
import json

import pytest
from aiohttp import web

from agentlightning.gateway import Limits, Upstream, pipeline
from agentlightning.store.base import StoreError

from .conftest import PROMPT, tokens_of, whole


async def test_answer_is_untouched_and_recorded(world):
    answer = await world.post(
        {"temperature": 0.3, "max_tokens": 9}, headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    )
    assert answer.status == 200
    assert json.loads(answer.raw) == whole({"model": "tiny"})
    (call,) = world.store.calls
    ids, logprobs = tokens_of("hello there world")
    assert (call.prompt_ids, call.response_ids, call.logprobs) == (PROMPT, ids, logprobs)
    assert (call.prompt_tokens, call.completion_tokens, call.finish_reason) == (3, 3, "stop")
    assert (call.rollout_id, call.attempt_id, call.sequence, call.choice) == ("ro-1", "at-1", 0, 0)
    assert (call.trace_id, call.span_id, call.response_id) == ("a" * 32, "b" * 16, "chatcmpl-1")
    assert call.response == {"role": "assistant", "content": "hello there world"}
    assert call.request["messages"] == [{"role": "user", "content": "hi"}]
    assert (call.status, call.masked, call.policy, call.model) == ("ok", None, "default", "m")
    assert call.end_time >= call.start_time > 0
    sent = world.engine.bodies[0]
    assert (sent["model"], sent["return_token_ids"], sent["logprobs"]) == ("tiny", True, True)


async def test_secrets_stay_here(world):
    await world.post(
        headers={"x-agl-tags": "%7B%7D", "x-agl-policy": "default", "cookie": "a=b", "traceparent": "x"}
    )
    headers = {k.lower(): v for k, v in world.engine.headers[0].items()}
    assert headers["authorization"] == "Bearer engine-secret"
    assert not [k for k in headers if k.startswith("x-agl")] and "cookie" not in headers
    assert world.key not in str(headers)
    assert "engine-secret" not in repr(Upstream(url="http://h/v1", model="m", api_key="engine-secret"))


async def test_answer_waits_for_the_record(world):
    world.store.hold = asyncio.Event()
    asking = asyncio.create_task(world.post())
    await world.store.waiting.wait()
    done, _ = await asyncio.wait({asking}, timeout=0.05)
    assert not done and not world.store.calls
    world.store.hold.set()
    assert (await asking).status == 200 and len(world.store.calls) == 1


@pytest.mark.parametrize("body", [{"n": 1025}, {"n": "2000"}, {"n": 600, "prompt": ["a", "b"]}])
async def test_a_million_choices_are_refused_before_an_engine_makes_them(world, body):
    answer = await world.post(body, path="/completions" if "prompt" in body else "/chat/completions")
    assert answer.status == 400 and b"too-many-choices" in answer.raw and b"at most 1024" in answer.raw
    assert not world.engine.bodies and not world.store.calls


async def test_completions(world):
    answer = await world.post({"prompt": "a b", "logprobs": 3}, path="/completions")
    assert answer.status == 200
    (call,) = world.store.calls
    assert (call.api, call.response, call.prompt_ids) == (
        "completions",
        {"text": "hello there world"},
        PROMPT,
    )
    assert call.logprobs == tokens_of("hello there world")[1]
    assert world.engine.bodies[0]["logprobs"] == 3
    await world.post({"prompt": "a b"}, path="/completions")
    assert world.engine.bodies[1]["logprobs"] == 1


async def test_several_choices_share_a_sequence(world):
    await world.post({"n": 2})
    await world.post()
    calls = world.store.calls
    assert [(c.sequence, c.choice) for c in calls] == [(0, 0), (0, 1), (1, 0)]
    assert len({c.call_id for c in calls}) == 3
    assert [c.completion_tokens for c in calls] == [3, 3, 3]


async def test_several_prompts_have_their_own_counts(world):
    async def answer(request, body):
        out = whole(body | {"n": 2}, api="completions")
        out["choices"][1]["prompt_token_ids"] = [1, 2]
        out["usage"]["prompt_tokens"] = 5
        return web.json_response(out)

    world.engine.answer = answer
    await world.post({"prompt": ["a", "b"]}, path="/completions")
    assert [(c.prompt_ids, c.prompt_tokens) for c in world.store.calls] == [(PROMPT, 3), ([1, 2], 2)]


async def test_counts_that_disagree_are_recorded_as_they_are(world):
    world.engine.options = {"usage": {"prompt_tokens": 99, "completion_tokens": 98}}
    await world.post()
    await world.post({"n": 2})
    assert [(c.prompt_tokens, c.completion_tokens) for c in world.store.calls] == [(99, 98)] * 3
    assert [len(c.response_ids) for c in world.store.calls] == [3] * 3


async def test_without_ids_the_call_is_still_recorded(world):
    async def answer(request, body):
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "x"}}]})

    world.engine.answer = answer
    assert (await world.post()).status == 200
    (call,) = world.store.calls
    assert not call.has_ids and call.logprobs is None and call.status == "ok" and call.prompt_tokens is None


async def test_a_missing_logprob_is_not_a_zero(world):
    async def answer(request, body):
        out = whole(body, api="completions")
        out["choices"][0]["logprobs"]["token_logprobs"][0] = None
        return web.json_response(out)

    world.engine.answer = answer
    await world.post({"prompt": "x"}, path="/completions")
    assert world.store.calls[0].logprobs is None


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_of_no_token_is_refused_as_openai_does(world, name, limit):
    await refuses_no_tokens(world, "/chat/completions", {**ASKED, name: limit}, name)


ASKED = {"messages": [{"role": "user", "content": "hi"}]}


async def refuses_no_tokens(world, path, asked, name):
    """The API at ``path`` refuses a request whose limit is no token, and names the limit."""
    got = await world.post(data=json.dumps({"model": "m", **asked}).encode(), path=path)
    assert got.status == 400 and name in json.loads(got.raw)["error"]["message"]
    assert not world.engine.bodies and not world.store.calls
    assert (await world.post({name: None, "max_tokens": 1}, path="/chat/completions")).status == 200


GARBAGE = {
    "half": b'{"choices": [{"message": {"content": "hi',
    "empty": b"",
    "not json": b"<html>502</html>",
    "no choices": b'{"id": "x"}',
    "no choice": b'{"choices": []}',
    "no message": b'{"choices": [{"index": 0}]}',
    "choices not a list": b'{"choices": {"a": 1}}',
    "ids not numbers": b'{"choices": [{"message": {}, "token_ids": ["a"]}]}',
    "id beyond int32": b'{"choices": [{"message": {}, "token_ids": [4294967296]}]}',
    "negative id": b'{"choices": [{"message": {}, "token_ids": [-1]}]}',
    "logprob missing": b'{"choices": [{"message": {}, "logprobs": {"content": [{"token": "a"}]}}]}',
    "logprob NaN": b'{"choices": [{"message": {}, "logprobs": {"content": [{"logprob": NaN}]}}]}',
    "message a text": b'{"choices": [{"message": "hi"}]}',
    "same index twice": b'{"choices": [{"message": {}}, {"message": {}}]}',
    "array": b"[1, 2]",
    "not utf-8": b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',
}


@pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("stream", [False, True])
async def test_garbage_is_an_error_call_and_a_502(world, raw, stream):
    async def answer(request, body):
        return web.Response(body=raw, content_type="application/json")

    world.engine.answer = answer
    got = await world.post({"stream": stream})
    assert got.status == 502
    assert json.loads(got.raw)["error"]["code"] == "bad-answer"
    (call,) = world.store.calls
    assert call.status == "error" and call.error.startswith("bad-answer: ")


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("stream", [False, True])
async def test_error_statuses_pass_through_and_are_recorded(world, status, stream):
    async def answer(request, body):
        error = {"error": {"message": "no: engine-secret", "code": "some_code", "type": "t"}}
        return web.json_response(error, status=status, headers={"retry-after": "3", "set-cookie": "a=b"})

    world.engine.answer = answer
    got = await world.post({"stream": stream})
    assert (got.status, json.loads(got.raw)["error"]["message"]) == (status, "no: ***")
    if not stream:
        assert got.headers["retry-after"] == "3"
    assert "set-cookie" not in got.headers
    (call,) = world.store.calls
    assert (call.status, call.error, call.masked) == ("error", f"HTTP {status} some_code: no: ***", None)
    assert len(world.engine.bodies) == 1, "the gateway does not retry"


async def test_over_length_has_its_own_reason(world):
    async def answer(request, body):
        message = "This model's maximum context length is 10 tokens. However, you requested 12."
        return web.json_response({"object": "error", "message": message, "code": 400}, status=400)

    world.engine.answer = answer
    assert (await world.post()).status == 400
    assert world.store.calls[0].masked == "over-length"


async def test_a_redirect_is_not_followed_nor_passed_on(world):
    async def answer(request, body):
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:1/steal")

    world.engine.answer = answer
    got = await world.post()
    assert got.status == 502 and "location" not in got.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_down(world, stream):
    world.gateway.add_route(Upstream(url="http://127.0.0.1:1/v1", model="m", api_key="engine-secret"))
    got = await world.post({"stream": stream})
    assert got.status == 502
    assert json.loads(got.raw)["error"]["code"] == "engine-unreachable" and b"engine-secret" not in got.raw
    assert world.store.calls[0].error.startswith("engine-unreachable")


async def test_engine_hangs_up_mid_answer(world):
    async def answer(request, body):
        out = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await out.prepare(request)
        await out.write(b'{"choices": [')
        request.transport.abort()
        return out

    world.engine.answer = answer
    assert (await world.post()).status == 502
    assert world.store.calls[0].status == "error"


async def test_engine_too_slow(world, engine, store):
    async def answer(request, body):
        await asyncio.Event().wait()

    engine.answer = answer
    world.gateway._client._session._timeout = __import__("aiohttp").ClientTimeout(total=0.05)
    got = await world.post()
    assert got.status == 504 and store.calls[0].error.startswith("engine-timeout")


async def test_engine_answer_too_large(world):
    world.gateway._client.limits = Limits(answer_bytes=100)
    got = await world.post()
    assert got.status == 502 and json.loads(got.raw)["error"]["code"] == "answer-too-large"

    async def chunked(request, body):
        out = web.StreamResponse(headers={"Content-Type": "application/json"})
        await out.prepare(request)
        for _ in range(20):
            await out.write(b" " * 50)
        return out

    world.engine.answer = chunked
    assert json.loads((await world.post()).raw)["error"]["code"] == "answer-too-large"
    assert [c.status for c in world.store.calls] == ["error", "error"]


async def test_a_store_that_fails_withholds_the_answer(world, caplog):
    world.store.fail = StoreError("disk full")
    got = await world.post()
    assert got.status == 503 and b"hello" not in got.raw
    metrics = await world.metrics()
    assert (
        metrics["lost_records"] == 1 and metrics["refused"] == {"store-failed": 1} and metrics["calls"] == {}
    )
    assert "disk full" in caplog.text


async def test_a_store_that_refuses_is_a_409(world):
    world.store.ended("at-1")
    got = await world.post()
    assert got.status == 409 and b"hello" not in got.raw and got.headers["x-should-retry"] == "false"
    assert world.store.counted["refused", "attempt-ended", "at-1"] == 1


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'"x"', b'{"a": "\xff"}'])
async def test_bad_body(world, raw):
    got = await world.post(data=raw)
    assert got.status == 400 and json.loads(got.raw)["error"]["code"] == "bad-body"
    assert not world.store.calls and not world.engine.bodies
    assert world.store.counted["refused", "bad-body", "at-1"] == 1


async def test_body_too_large(world, monkeypatch):
    monkeypatch.setattr(pipeline, "BODY_LIMIT", 1000)
    got = await world.post({"x": "y" * 2000})
    assert got.status == 413 and json.loads(got.raw)["error"]["code"] == "body-too-large"
    assert not world.engine.bodies


async def test_header_too_long(world):
    got = await world.post(headers={"x-agl-tags": "%22" * 20_000})
    assert got.status == 400 and not world.engine.bodies


async def test_version_of_answer_else_of_route(world, engine):
    world.gateway.add_route(Upstream(url=engine.url, model="tiny", version=lambda: 4))
    await world.post()
    engine.options = {"policy_version": 5}
    await world.post()
    assert [c.policy_version for c in world.store.calls] == [4, 5]


async def test_each_token_keeps_the_version_that_sampled_it(world, engine):
    world.gateway.add_route(Upstream(url=engine.url, model="tiny", version=lambda: 4))
    for versions in ([4, 4, 5], [4, 5, 6]):

        async def answer(request, body, versions=versions):
            made = whole(body, policy_version=4)
            made["choices"][0]["policy_versions"] = versions
            return web.json_response(made)

        engine.answer = answer
        await world.post()
    first, second = world.store.calls
    assert (first.policy_version, first.policy_versions) == (4, [4, 4, 5])
    assert second.error == "bad-answer: the engine's answer is of policy version 6; version 4 is served"


async def test_hook_is_told_after_the_commit_and_cannot_break_a_call(world, caplog):
    told = []

    def hook(call):
        assert call in world.store.calls
        told.append(call.sequence)
        raise RuntimeError("broken hook")

    world.gateway._pipeline.writer.on_call = hook
    for _ in range(3):
        assert (await world.post()).status == 200
    metrics = await world.metrics()
    assert told == [0, 1, 2] and metrics["hook_errors"] == 3
    assert caplog.text.count("on_call failed") == 1


async def test_retries_are_recorded_as_such(world):
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}

    async def answer(request, body):
        if len(world.engine.bodies) == 1:
            return web.json_response({"error": {"message": "busy"}}, status=503)
        return web.json_response(whole(body))

    world.engine.answer = answer
    await world.post(headers=trace | {"x-stainless-retry-count": "0"})
    await world.post(headers=trace | {"x-stainless-retry-count": "1"})
    first, second = world.store.calls
    assert (first.status, first.retry, first.span_id) == ("error", 0, "b" * 16)
    assert (second.status, second.retry, second.span_id) == ("ok", 1, "b" * 16)
    assert first.sequence < second.sequence
