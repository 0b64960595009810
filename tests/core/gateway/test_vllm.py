"""What vLLM (0.32) does otherwise than OpenAI's API, in the shape it was seen: the answers here are its own,
shortened."""

import json

import openai
import pytest
from aiohttp import web

from agentlightning.gateway import SamplingPolicy, Upstream

from .conftest import PROMPT, chunks, events, tokens_of, whole

HEAD = {
    "id": "chatcmpl-8b4bc067",
    "object": "chat.completion.chunk",
    "created": 1795196838,
    "model": "policy",
}
TOOLS = [{"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}}]


def piece(delta, ids, finish=None, **more):
    """One chunk of a stream: its tokens are said whatever becomes of them in the delta."""
    content = [{"token": str(i), "logprob": -0.125, "bytes": [49], "top_logprobs": []} for i in ids]
    choice = {"index": 0, "delta": delta, "logprobs": {"content": content}, "finish_reason": finish, **more}
    return HEAD | {"choices": [choice | {"token_ids": ids}]}


def said(call):
    """A delta of one tool call."""
    return {"content": None, "tool_calls": call}


STREAMED_TOOL = [
    HEAD
    | {
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        "prompt_token_ids": PROMPT,
        "prompt_text": None,
    },
    piece({}, [502]),
    piece(
        said(
            [
                {"id": "chatcmpl-tool-9b", "type": "function", "index": 0, "function": {"name": "calculate"}},
                {"index": 0, "function": {"arguments": '{"expression": "'}},
            ]
        ),
        [503],
    ),
    piece(said([{"index": 0, "function": {"arguments": "1"}}]), [19]),
    piece(said([{"index": 0, "function": {"arguments": '"}'}}]), [504]),
    piece({}, [505]),
    piece({}, [2], "tool_calls", stop_reason=None),
    HEAD
    | {
        "choices": [],
        "usage": {"prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6},
        "system_fingerprint": "vllm-0.32.0-380118dc",
    },
]


@pytest.fixture
def run(world):
    world.gateway.policy_sampling("default", SamplingPolicy())
    return world


async def test_a_streamed_tool_call_passes_through_with_every_token(run):
    """Chunks without content bear the tokens of the marks; name and first arguments share a chunk."""

    async def answer(request, body):
        return await run.engine.stream(request, STREAMED_TOOL)

    run.engine.answer = answer
    async with openai.AsyncOpenAI(base_url=run.url, api_key=run.key) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, stream=True
        )
        heard = [chunk async for chunk in stream]
    (call,) = run.store.calls
    assert call.response_ids == [502, 503, 19, 504, 505, 2] and call.logprobs == [-0.125] * 6
    assert (call.prompt_ids, call.completion_tokens, call.masked) == (PROMPT, 6, None)
    function = {"name": "calculate", "arguments": '{"expression": "1"}'}
    assert call.response["tool_calls"] == [
        {"id": "chatcmpl-tool-9b", "type": "function", "function": function}
    ]
    told = [t.function.arguments or "" for c in heard for d in c.choices for t in d.delta.tool_calls or ()]
    assert "".join(told) == function["arguments"]
    metrics = await run.metrics()
    assert metrics["streams"] == {"passed": 1} and metrics["replayed_kinds"] == {"default": []}


GIVEN_UP = "engine-aborted"


def giving_up(run, times):
    """vLLM when it is paused: the answers under way end where they are, with 200."""
    left = [times]

    async def answer(request, body):
        finish = "abort" if left[0] > 0 else "stop"
        left[0] -= 1
        if not body.get("stream"):
            made = whole(body)
            made["choices"][0]["finish_reason"] = finish
            return web.json_response(made)
        *first, last, usage = chunks(body)
        last["choices"][0]["finish_reason"] = finish
        return await run.engine.stream(request, [*first, last, usage])

    run.engine.answer = answer


async def test_an_answer_that_was_given_up_is_asked_again_by_the_sdk(run):
    giving_up(run, 1)
    async with openai.AsyncOpenAI(base_url=run.url, api_key=run.key) as client:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "hello there world"
    given_up, answered = run.store.calls
    assert given_up.status == "error" and given_up.error.startswith(GIVEN_UP) and answered.status == "ok"
    assert given_up.sampling["seed"] == answered.sampling["seed"], "the same question, the same seed"


@pytest.mark.parametrize("way", ["whole", "passed", "replayed"])
async def test_an_answer_that_was_given_up_is_an_error(run, way):
    run.gateway.add_route(Upstream(url=run.engine.url, model="tiny", stream_ids=way == "passed"))
    giving_up(run, 1)
    answer = await run.post({"stream": way != "whole"})
    (call,) = run.store.calls
    assert call.status == "error" and call.error.startswith(GIVEN_UP)
    if way == "passed":
        assert call.response_ids == tokens_of("hello there world")[0], "what arrived is on record"
        *_, last = events(answer.raw)
        assert last["error"]["code"] == GIVEN_UP
        assert not any((e.get("choices") or [{}])[0].get("finish_reason") for e in events(answer.raw))
    else:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert json.loads(answer.raw)["error"]["code"] == GIVEN_UP


@pytest.mark.parametrize("mode", ["train", "val"])
async def test_guided_choice_reaches_the_engine_by_the_name_it_knows(run, mode):
    """vLLM takes the older field for none at all: 200, and any answer."""
    key = run.open("2", mode=mode)
    await run.post({"guided_choice": ["yes", "no"]}, key=key)
    (sent,) = run.engine.bodies
    assert sent["structured_outputs"] == {"choice": ["yes", "no"]} and "guided_choice" not in sent
    (call,) = run.store.calls
    assert call.request["guided_choice"] == ["yes", "no"]
    assert call.masked == ("off-policy-sampling" if mode == "train" else None)


async def test_two_ways_to_constrain_are_the_engines_to_judge(run):
    both = {"guided_choice": ["yes"], "structured_outputs": {"regex": "a"}}
    await run.post(both)
    assert both.items() <= run.engine.bodies[0].items()


async def test_an_agent_cannot_have_the_ids_hidden(run):
    """With ``include_reasoning: false`` vLLM says neither reasoning nor ids."""
    await run.post({"include_reasoning": False})
    assert "include_reasoning" not in run.engine.bodies[0] and run.store.calls[0].has_ids


TOO_LONG = (
    "This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
    "prompt. (parameter=input_tokens, value=1025)"
)
TOO_MUCH = (
    "max_tokens=2000 cannot be greater than max_model_len=1024. Please request fewer output tokens. "
    "(parameter=max_tokens, value=2000)"
)


@pytest.mark.parametrize(
    ("message", "param", "code", "masked"),
    [
        (TOO_LONG, "input_tokens", "context_length_exceeded", "over-length"),
        (TOO_MUCH, "max_tokens", 400, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_and_an_answer_that_would_be(
    run, message, param, code, masked, stream
):
    """The code of its errors is a number. Only the first is about the prompt."""
    error = {"message": message, "type": "BadRequestError", "param": param, "code": 400}

    async def answer(request, body):
        return web.json_response({"error": error}, status=400)

    run.engine.answer = answer
    said = await run.post({"stream": stream})
    assert (said.status, json.loads(said.raw)["error"]["code"]) == (400, code)
    assert [call.masked for call in run.store.calls] == [masked]
