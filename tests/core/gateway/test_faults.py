"""What engines and stores can do wrong, beyond a broken body: a clear error, one counted record, no hang."""

import asyncio
import gzip
import json

import openai
import pytest
from aiohttp import web

from agentlightning.credit.assign import assign
from agentlightning.gateway import Limits, Upstream
from agentlightning.recipes import GRPO
from agentlightning.store.base import StoreError
from agentlightning.types import AttemptStatus, Record, Reward, Rollout, RolloutStatus

from .conftest import PROMPT, chunks, events, tokens_of, whole

ASK = [{"role": "user", "content": "hi"}]
STREAM = {"stream": True}
NEST = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
DEEP = b'{"choices": [{"message": ' + NEST + b', "delta": ' + NEST + b"}]}"


def out(world):
    """Why the recorded calls are not trained."""
    rollout = Rollout(rollout_id="ro-1", status=RolloutStatus.SUCCEEDED, group_id="g")
    record = Record(rollout=rollout, calls=world.store.calls, rewards=[Reward(value=1.0)])
    (ledger,) = assign([record], GRPO(filter_zero_std_groups=False)).ledgers
    assert ledger.sums and ledger.made == len(world.store.calls) > 0
    return ledger.left_out


def answers(world, make):
    async def answer(request, body):
        made = make(body)
        if isinstance(made, bytes):
            return web.Response(body=made, content_type="application/json")
        return web.json_response(made)

    world.engine.answer = answer


def edited(change):
    def make(body):
        answer = whole(body)
        change(answer, answer["choices"][0])
        return answer

    return make


READABLE = {
    "a logprob too few": (lambda a, c: c["logprobs"]["content"].pop(), "mismatch"),
    "an id too many": (lambda a, c: c.update(token_ids=[*c["token_ids"], 7]), "mismatch"),
    "usage of another answer": (lambda a, c: a["usage"].update(completion_tokens=9), "mismatch"),
    "prompt counted otherwise": (lambda a, c: a["usage"].update(prompt_tokens=9), "mismatch"),
    "no ids": (lambda a, c: c.pop("token_ids"), "no-ids"),
    "no prompt ids": (lambda a, c: a.pop("prompt_token_ids"), "no-ids"),
    "no logprobs": (lambda a, c: c.pop("logprobs"), "no-logprobs"),
    "no tokens": (
        lambda a, c: (
            c.update(token_ids=[], logprobs={"content": []}),
            a["usage"].update(completion_tokens=0),
        ),
        "empty-response",
    ),
}


@pytest.mark.parametrize(("change", "reason"), READABLE.values(), ids=READABLE)
async def test_an_answer_one_can_read_but_not_train(world, change, reason):
    answers(world, edited(change))
    assert (await world.post()).status == 200, "the agent has its text"
    assert out(world) == {reason: 1}


async def test_equal_response_ids_do_not_mix_calls(world):
    answers(world, lambda body: whole(body, text=body["messages"][0]["content"]))
    for text in ("one", "two three"):
        assert (await world.post({"messages": [{"role": "user", "content": text}]})).status == 200
    assert (
        len({c.response_id for c in world.store.calls}) == 1
        and len({c.call_id for c in world.store.calls}) == 2
    )
    assert [c.response_ids for c in world.store.calls] == [tokens_of("one")[0], tokens_of("two three")[0]]
    assert out(world) == {}


MENDED = {
    "a float of seconds": (lambda a, c: a.update(created=1.7e9 + 0.25), None),
    "half a character": (lambda a, c: c["message"].update(content="a \ud83d b"), "half characters replaced"),
    "a whole character": (lambda a, c: c["message"].update(content="a \U0001f600 b"), None),
    "a backslash": (lambda a, c: c["message"].update(content="a \\ud83d b"), None),
}


@pytest.mark.parametrize(("change", "mended"), MENDED.values(), ids=MENDED)
async def test_an_answer_that_the_agent_could_read_directly(world, change, mended):
    await is_readable(world, change, mended, "/chat/completions", {"messages": ASK, "max_tokens": 9})


async def is_readable(world, change, mended, path, body):
    """The answer at ``path`` to a call whose engine changes its answer so."""
    answers(world, edited(change))
    got = await world.post(data=json.dumps(body).encode(), path=path)
    assert got.status == 200, got.raw
    json.loads(got.raw)["id"].encode()
    (call,) = world.store.calls
    assert call.status == "ok" and call.edited.get("answer") == mended
    call.response["content"].encode()
    assert out(world) == {}


@pytest.mark.parametrize("raw", [True, False], ids=["bytes", "escaped"])
async def test_half_a_character_in_a_stream(world, raw):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True))

    async def answer(request, body):
        items = chunks(body)
        items[2]["choices"][0]["delta"]["content"] = " \ud83d"
        data = json.dumps(items[2], ensure_ascii=not raw).encode(errors="surrogatepass")
        return await world.engine.stream(request, [*items[:2], b"data: " + data + b"\n\n", *items[3:]])

    world.engine.answer = answer
    got = await world.post({"stream": True})
    assert "".join(
        c["delta"].get("content") or "" for e in events(got.raw)[:-1] for c in e["choices"]
    ).encode()
    (call,) = world.store.calls
    assert call.edited["answer"] == "half characters replaced" and out(world) == {}
    assert call.response["content"].startswith("hello \ufffd")


@pytest.mark.parametrize("given", [None, "absent"])
async def test_tool_calls_of_a_stream_without_an_index(world, given):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True))

    def piece(call_id, name, arguments):
        function = {"name": name, "arguments": arguments}
        found = {"index": None, "id": call_id, "function": function}
        return {k: v for k, v in found.items() if given is None or k != "index"}

    async def answer(request, body):
        items = chunks(body, text="a b c d", tool=("add", "{}"))
        told = [("one", "add", '{"a"'), (None, None, ": 1}"), ("two", "sub", "{"), (None, None, "}")]
        for item, args in zip(items[1:], told, strict=False):
            item["choices"][0]["delta"] = {"tool_calls": [piece(*args)]}
        return await world.engine.stream(request, items)

    world.engine.answer = answer
    async with (
        openai.AsyncOpenAI(base_url=world.url, api_key=world.key) as client,
        client.chat.completions.stream(model="m", messages=ASK) as stream,
    ):
        message = (await stream.get_final_completion()).choices[0].message
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
    assert calls == [("one", "add", '{"a": 1}'), ("two", "sub", "{}")]
    (call,) = world.store.calls
    assert [(c["id"], c["function"]["arguments"]) for c in call.response["tool_calls"]] == [
        ("one", '{"a": 1}'),
        ("two", "{}"),
    ]
    assert call.edited["answer"] == "tool calls without an index numbered" and out(world) == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [({"message": "slow down", "code": 429}, 429), ({"message": "slow down"}, 502), ("slow down", 502)],
)
async def test_an_error_with_status_200(world, error, status, stream):
    answers(world, lambda body: {"error": error})
    got = await world.post({"stream": stream})
    assert got.status == status and json.loads(got.raw) == {"error": error}
    (call,) = world.store.calls
    assert call.error.startswith(f"HTTP {status}") and "slow down" in call.error


UNREADABLE = {
    "nested without end": DEEP,
    "ids as text": b'{"choices": [{"message": {}, "token_ids": "123"}]}',
    "ids as floats": b'{"choices": [{"message": {}, "token_ids": [1.5]}]}',
    "ids as bools": b'{"choices": [{"message": {}, "token_ids": [true]}]}',
    "logprobs a number": b'{"choices": [{"message": {}, "logprobs": 3}]}',
    "logprob huge": b'{"choices": [{"message": {}, "logprobs": {"content": [{"logprob": 1e999}]}}]}',
    "usage a list": b'{"choices": [{"message": {}}], "usage": []}',
    "a count of 63 bits": b'{"choices": [{"message": {}}], "usage": {"prompt_tokens": 9223372036854775808}}',
    "a negative count": b'{"choices": [{"message": {}}], "usage": {"completion_tokens": -1}}',
    "an index of 63 bits": b'{"choices": [{"message": {}, "index": 9223372036854775808}]}',
    "a version of 64 bits": b'{"choices": [{"message": {}}], "policy_version": 18446744073709551616}',
    "versions for other tokens": (
        b'{"choices": [{"message": {}, "token_ids": [1, 2], "policy_versions": [0]}], "policy_version": 0}'
    ),
    "a negative version of a token": (
        b'{"choices": [{"message": {}, "token_ids": [1], "policy_versions": [-1]}], "policy_version": 0}'
    ),
    "a time of 63 bits": b'{"choices": [{"message": {}}], "created": 9223372036854775808}',
    "an id of 31 bits": b'{"choices": [{"message": {}, "token_ids": [2147483648]}]}',
    "63 bits in a message": b'{"choices": [{"message": {"x": [{"y": 9223372036854775808}]}}]}',
    "63 bits in the sampling": b'{"choices": [{"message": {}}], "sampling": {"x": -9223372036854775809}}',
    "a message of many levels": b'{"choices": [{"message": {"x": ' + b"[" * 200 + b"]" * 200 + b"}}]}",
    "more choices than asked": b'{"choices": [{"message": {}}, {"message": {}, "index": 1}]}',
    "another choice than asked": b'{"choices": [{"message": {}, "index": 1}]}',
    "guided ids of text": b'{"choices": [{"message": {}}], "guided_choice_ids": [["a"]]}',
}


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_nobody_can_read(world, raw, stream):
    answers(world, lambda body: raw)
    got = await world.post({"stream": stream})
    assert got.status == 502 and json.loads(got.raw)["error"]["code"] == "bad-answer"
    assert world.store.calls[0].error.startswith("bad-answer: ") and out(world) == {"error": 1}


@pytest.mark.parametrize("raw", [DEEP, NEST, b'{"messages": ' + b"[" * 100_000])
async def test_a_body_nested_without_end_is_the_agents_fault(world, raw):
    got = await world.post(data=raw)
    assert got.status == 400 and json.loads(got.raw)["error"]["code"] == "bad-body"


def piece(**choice):
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None} | choice]}


STREAMS = {
    "half an event": b'data: {"choices": [\n\n',
    "html": b"<html>\n\n",
    "html as data": b"data: <html>\n\n",
    "ids as text": b'data: {"choices": [{"delta": {}, "token_ids": ["a"]}]}\n\n',
    "one index twice": {"choices": [{"index": 0, "delta": {}}, {"index": 0, "delta": {}}]},
    "a tool call that is none": piece(delta={"tool_calls": [3]}),
    "a count of 63 bits": {"choices": [], "usage": {"prompt_tokens": 2**63}},
    "63 bits in a delta": piece(delta={"x": 2**63}),
    "a choice that nobody asked for": piece(index=1),
    "delta a text": {"choices": [{"delta": "a"}]},
    "an array": b"data: [1]\n\n",
    "nested without end": b"data: " + DEEP + b"\n\n",
}


@pytest.mark.parametrize("item", STREAMS.values(), ids=STREAMS)
async def test_a_stream_nobody_can_read(world, item):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True))
    await answers_bad(world, item)


async def answers_bad(world, item):
    async def answer(request, body):
        return await world.engine.stream(request, [chunks(body)[0], item], done=False)

    world.engine.answer = answer
    got = events((await world.post(STREAM)).raw)
    assert got[-1]["error"]["code"] == "bad-answer" and "[DONE]" not in got
    assert out(world) == {"error": 1}


async def test_a_stream_of_wrong_lengths_is_a_mismatch(world):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True))

    async def answer(request, body):
        items = chunks(body)
        del items[2]["choices"][0]["logprobs"]
        return await world.engine.stream(request, items)

    world.engine.answer = answer
    assert events((await world.post(STREAM)).raw)[-1] == "[DONE]"
    assert out(world) == {"mismatch": 1}


async def test_an_endless_stream_ends(world):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True))
    world.gateway._client.limits = Limits(answer_bytes=4_000)

    async def answer(request, body):
        items = [chunks(body)[0], *[piece(token_ids=[1])] * 2_000]
        return await world.engine.stream(request, items)

    world.engine.answer = answer
    got = events((await world.post(STREAM)).raw)
    assert "longer than 4000 bytes" in got[-1]["error"]["message"] and out(world) == {"error": 1}


async def test_a_stream_that_falls_silent_meets_the_deadline(world):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True))
    world.gateway._client._session._timeout = __import__("aiohttp").ClientTimeout(total=0.1)

    async def answer(request, body):
        return await world.engine.stream(request, chunks(body), pause_after=2, gate=asyncio.Event())

    world.engine.answer = answer
    got = events((await world.post(STREAM)).raw)
    assert got[-1]["error"]["code"] == "engine-timeout"
    (call,) = world.store.calls
    assert call.status == "error" and call.response["content"] == "hello there"
    assert (await world.metrics())["in_flight"] == 0


async def test_a_small_body_that_unfolds_to_a_large_one(world):
    world.gateway._client.limits = Limits(answer_bytes=10_000)

    async def answer(request, body):
        raw = gzip.compress(json.dumps(whole(body, text="x " * 500_000)).encode())
        return web.Response(
            body=raw, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
        )

    world.engine.answer = answer
    got = await world.post()
    assert got.status == 502 and json.loads(got.raw)["error"]["code"] == "answer-too-large"
    assert out(world) == {"error": 1}


async def test_a_burst_of_failures_is_one_record_each(world):
    async def answer(request, body):
        return web.Response(status=500, text="CUDA error: engine-secret")  # no JSON

    world.engine.answer = answer
    got = await asyncio.gather(*(world.post({"stream": bool(i % 2)}) for i in range(40)))
    assert {g.status for g in got} == {500} and not any(b"engine-secret" in g.raw for g in got)
    assert out(world) == {"error": 40}
    assert {c.error for c in world.store.calls} == {"HTTP 500 http-500: CUDA error: ***"}


async def test_an_error_nested_without_end(world):
    async def answer(request, body):
        return web.Response(status=400, body=NEST, content_type="application/json")

    world.engine.answer = answer
    assert (await world.post()).status == 400
    assert world.store.calls[0].error.startswith("HTTP 400 http-400: ")


# -------------------------------------------------------------------------------- store, gate and engine
async def test_while_the_store_is_away_answers_are_withheld_and_the_agent_may_come_back(world, caplog):
    world.store.fail = StoreError("no connection")
    got = await world.post()
    assert got.status == 503 and json.loads(got.raw)["error"]["code"] == "store-failed"
    assert got.headers["Retry-After"] == "1" and "x-should-retry" not in got.headers
    world.store.fail = None
    assert (await world.post()).status == 200
    assert [c.sequence for c in world.store.calls] == [1]
    assert (await world.metrics())["lost_records"] == 1


async def test_a_store_that_cannot_be_asked_whose_key_it_is(world, caplog):
    async def away(rollout_id):
        raise StoreError("no connection")

    known, world.store.get_rollout_by_id = world.store.get_rollout_by_id, away
    world.store.put("ro-9", "at-9")
    key = world.keys.mint("ro-9", "at-9")
    got = await world.post(key=key)
    assert (got.status, got.headers["Retry-After"]) == (503, "1") and not world.engine.bodies
    world.store.get_rollout_by_id = known
    assert (await world.post(key=key)).status == 200, "it is asked again"


async def test_a_held_call_follows_an_engine_that_has_moved(world):
    """The engine was restarted elsewhere while the gate was closed."""
    await world.gateway.hold()
    world.gateway.add_route(Upstream(url="http://127.0.0.1:1/v1", model="gone"))
    held = [asyncio.create_task(world.post({"stream": s})) for s in (False, True)]
    while (await world.metrics())["waiting"] < 2:
        pass
    world.gateway.add_route(Upstream(url=world.engine.url, model="new", version=lambda: 7))
    await world.gateway.release()
    assert [(await call).status for call in held] == [200, 200]
    assert {b["model"] for b in world.engine.bodies} == {"new"}
    assert {c.policy_version for c in world.store.calls} == {7}


async def test_a_route_removed_while_a_call_was_held_is_still_asked(world):
    await world.gateway.hold()
    held = asyncio.create_task(world.post())
    while (await world.metrics())["waiting"] < 1:
        pass
    world.gateway.remove_route("default")
    await world.gateway.release()
    assert (await held).status == 200


async def test_stopping_with_the_gate_closed_does_not_hang(world):
    await world.gateway.hold()
    held = [asyncio.create_task(world.post({"stream": s})) for s in (False, True)]
    while (await world.metrics())["waiting"] < 2:
        pass
    await asyncio.wait_for(world.gateway.stop(), 300)
    await asyncio.gather(*held, return_exceptions=True)
    assert [c.status for c in world.store.calls] == ["cancelled"] * 2


async def test_closing_an_attempt_whose_store_is_away_does_not_hang(world, caplog):
    async def answer(request, body):
        await asyncio.Event().wait()

    world.engine.answer = answer
    asking = asyncio.create_task(world.post())
    await world.engine.arrived.wait()
    world.store.fail = StoreError("no connection")
    await asyncio.wait_for(world.gateway.close_attempt("at-1"), 300)
    assert (await asking).status == 503
    assert (await world.metrics())["lost_records"] == 1


# ------------------------------------------------------------------------------------- attempts elsewhere
async def test_metadata_of_an_attempt_opened_elsewhere(world):
    world.gateway.add_route(Upstream(policy="critic", url=world.engine.url, model="critic-model"))
    metadata = {"policies": {"Anna": "critic"}, "tags": {"side": "wolf", "seat": 5}}
    world.store.put("ro-9", "at-9", metadata=metadata)
    key = world.keys.mint("ro-9", "at-9")
    assert (await world.post(key=key, headers={"x-agl-tags": '{"agent": "Anna"}'})).status == 200
    (call,) = world.store.calls
    assert (call.policy, call.tags) == ("critic", {"side": "wolf", "seat": "5", "agent": "Anna"})
    world.store.put("ro-8", "at-8", metadata={"policies": ["?"], "tags": "?"})
    assert (await world.post(key=world.keys.mint("ro-8", "at-8"))).status == 200


@pytest.mark.parametrize("opened", ["here", "elsewhere"])
async def test_an_attempt_that_lost_its_lease_is_stopped_as_a_whole(world, opened):
    """The store refuses the first record: the key dies, calls under way are stopped, refused and counted."""
    if opened == "elsewhere":
        world.store.put("ro-1", "at-1")
        world.gateway._attempts._open.clear()
    hang = asyncio.Event()

    async def answer(request, body):
        if body["messages"][0]["content"] == "slow":
            hang.set()
            await asyncio.Event().wait()
        return await world.engine.default(request, body)

    world.engine.answer = answer
    slow = [
        asyncio.create_task(world.post({"messages": [{"role": "user", "content": "slow"}], "stream": s}))
        for s in (False, True)
    ]
    while len(world.engine.bodies) < 2:
        await hang.wait()
        await world.metrics()
    world.store.ended("at-1")
    assert (await world.post()).status == 409
    assert [(await call).status for call in slow] == [409, 409]
    asked = len(world.engine.bodies)
    assert (await world.post()).status == 409 and len(world.engine.bodies) == asked, "the engine is spared"
    assert world.store.counted["refused", "attempt-ended", "at-1"] == 4
    metrics = await world.metrics()
    assert (metrics["lost_records"], metrics["in_flight"]) == (3, 0)
    assert metrics["attempts"] == (1 if opened == "here" else 0)
    await world.gateway.close_attempt("at-1")
    assert (await world.metrics())["attempts"] == 0 and not world.store.calls


async def test_an_attempt_that_ended_elsewhere_is_not_read_back(world):
    world.store.put("ro-9", "at-9")
    key = world.keys.mint("ro-9", "at-9")
    assert (await world.post(key=key)).status == 200
    world.store.attempts["at-9"].status = AttemptStatus.TIMEOUT
    world.store.ended("at-9")
    assert [(await world.post(key=key)).status for _ in range(3)] == [409] * 3
    assert world.store.lookups == 1 and len(world.engine.bodies) == 2
    assert world.store.calls[0].prompt_ids == PROMPT


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("version", "known"), [(4, True), (5, True), (6, False), (2**40, False)])
async def test_a_version_that_was_never_served(world, stream, version, known):
    """One ahead is what an engine serves while the driver still waits for it to say so."""
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True, version=lambda: 4))

    async def answer(request, body):
        if not stream:
            return web.json_response(whole(body, policy_version=version))
        return await world.engine.stream(request, [c | {"policy_version": version} for c in chunks(body)])

    world.engine.answer = answer
    got = await world.post({"stream": stream})
    (call,) = world.store.calls
    if known:
        assert (call.status, call.policy_version) == ("ok", version)
    else:
        assert call.status == "error" and call.error.startswith("bad-answer: ")
        assert b"bad-answer" in got.raw and call.response_ids is None


async def test_choices_of_several_prompts_are_all_expected(world):
    async def answer(request, body):
        return web.json_response(whole(body | {"n": 4}, api="completions"))

    world.engine.answer = answer
    for body in ({"prompt": ["a", "b"], "n": 2}, {"prompt": [[1, 2], [3]], "n": 2}, {"prompt": "a", "n": 4}):
        assert (await world.post(body, path="/completions")).status == 200
    for body in ({"prompt": ["a", "b"]}, {"prompt": [1, 2, 3, 4]}, {"prompt": "a", "n": 3}):
        assert (await world.post(body, path="/completions")).status == 502
