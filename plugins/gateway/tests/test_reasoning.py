"""The reasoning split: what the agent sees, what is recorded, and why the next turn does not merge."""

import json

import openai
import pytest
from agl_gateway.edits.reasoning import ReasoningSplitter, StreamReasoningSplitter, split_message
from agl_gateway.edits.section import RouteSection
from aiohttp import web
from contract.model_server import ModelServer
from core.gateway import test_faults as faults
from core.gateway.conftest import chunks, events, tokens_of
from hypothesis import given, strategies as st

from agentlightning.credit.forest import build_forest
from agentlightning.gateway import Upstream

CASES = {
    "one block": ("<think>\nI am a wolf.\n</think>\n\n我是村民。", "我是村民。", "I am a wolf."),
    "no block": ("  我是村民。 ", "  我是村民。 ", ""),
    "empty block": ("<think>\n\n</think>\n\nhi", "hi", ""),
    "never closed": ("<think>it goes on and on", "", "it goes on and on"),
    "only a block": ("<think>hm</think>", "", "hm"),
    "several": ("<think>a</think>one <think> b </think> two", "one two", "a\n\nb"),
    "tags do not nest": ("<think>a<think>b</think>c</think>d", "c</think>d", "a<think>b"),
    "white space before": ("\n <think>a</think> b", "b", "a"),
    "a stray end": ("a</think>b", "a</think>b", ""),
    "half a tag": ("a <thi", "a <thi", ""),
    "half an end": ("<think>a </thin", "", "a </thin"),
    "other tags": ("<b>x</b> <thinking>", "<b>x</b> <thinking>", ""),
    "nothing": ("", "", ""),
    "blank": (" \n", " \n", ""),
}
OPENED = {
    "begins inside": ("I am a wolf.\n</think>\n\n我是村民。", "我是村民。", "I am a wolf."),
    "repeats the tag": ("\n<think>a</think>b", "b", "a"),
    "never closed": ("on and on", "", "on and on"),
    "half a tag": ("<thi", "", "<thi"),
    "two blocks": ("a</think>b<think>c</think>d", "bd", "a\n\nc"),
}


def split(pieces, opened=False):
    splitter = ReasoningSplitter(opened)
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.end()]
    return "".join(c for c, _ in parts), "".join(r for _, r in parts)


@pytest.mark.parametrize(("text", "content", "reasoning"), CASES.values(), ids=CASES)
def test_whole_and_letter_by_letter(text, content, reasoning):
    assert split([text]) == split(list(text)) == (content, reasoning)


@pytest.mark.parametrize(("text", "content", "reasoning"), OPENED.values(), ids=OPENED)
def test_opened_by_the_template(text, content, reasoning):
    assert split([text], True) == split(list(text), True) == (content, reasoning)


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "th", "ink>", "</", " ", "\n", "想", "a"]), max_size=14
)


@given(PIECES, st.lists(st.integers(1, 5)), st.booleans())
def test_any_cut_says_the_same(parts, cuts, opened):
    text, pieces, place = "".join(parts), [], 0
    for cut in cuts:
        pieces.append(text[place : place + cut])
        place += cut
    pieces.append(text[place:])
    content, reasoning = split(pieces, opened)
    assert (content, reasoning) == split([text], opened)
    if "<think>" not in text and not opened:
        assert (content, reasoning) == (text, "")
    for letter in "想a":
        assert (content + reasoning).count(letter) == text.count(letter), "nothing is lost, nothing doubled"


def test_messages_with_tools():
    call = {"id": "c", "type": "function", "function": {"name": "vote", "arguments": "{}"}}
    message = {"role": "assistant", "content": "<think>5号 lies</think>", "tool_calls": [call]}
    assert split_message(message, False)
    assert message == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "5号 lies",
        "tool_calls": [call],
    }
    assert not split_message({"content": None, "tool_calls": [call]}, False)
    already = {"content": "<think>x</think>y", "reasoning_content": "the engine did it"}
    assert not split_message(already, False) and already["content"] == "<think>x</think>y"


def test_a_chunk_without_a_change_is_the_very_bytes():
    raw = b'{"choices": [{"index": 0, "delta": {"content": "plain"}}]}'
    assert StreamReasoningSplitter(False).chunk(raw) is raw
    assert StreamReasoningSplitter(False).chunk(b'{"usage": {}}') == b'{"usage": {}}'


# ------------------------------------------------------------------------------------- through the gateway
THOUGHT = "<think> he is the seer </think> I vote 5"


def route(world, reasoning="split", **fields):
    settings = RouteSection(reasoning=reasoning)
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", settings=settings, **fields))


def streamed(raw):
    deltas = [c["delta"] for e in events(raw) if e != "[DONE]" for c in e["choices"]]
    return tuple("".join(d.get(name) or "" for d in deltas) for name in ("content", "reasoning_content"))


@pytest.mark.parametrize("way", ["whole", "passed", "replayed"])
async def test_the_agent_sees_both_parts_and_the_record_stays_raw(world, way):
    route(world, stream_ids=way == "passed")
    world.engine.options = {"text": THOUGHT}
    got = await world.post({"stream": way != "whole"})
    ids, logprobs = tokens_of(THOUGHT)
    if way == "whole":
        body = json.loads(got.raw)
        message = body["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("I vote 5", "he is the seer")
        assert body["choices"][0]["token_ids"] == ids and body["id"] == "chatcmpl-1"
    else:
        assert streamed(got.raw) == ("I vote 5", "he is the seer")
        sent = [c for e in events(got.raw) if e != "[DONE]" for c in e["choices"]]
        assert [i for c in sent for i in c.get("token_ids") or ()] == ids
    (call,) = world.store.calls
    assert (call.response_ids, call.logprobs) == (ids, logprobs)
    assert (call.response["content"], call.response["reasoning_content"]) == ("I vote 5", "he is the seer")
    assert call.edited == {"reasoning": "split"} and call.masked is None
    assert (await world.metrics())["split"] == 1


@pytest.mark.parametrize("policy", ["keep", "split"])
@pytest.mark.parametrize("stream", [False, True])
async def test_without_thoughts_nothing_is_touched(world, policy, stream):
    route(world, reasoning=policy)
    got = await world.post({"stream": stream})
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny"))
    assert got.raw == (await world.post({"stream": stream})).raw
    assert world.store.calls[0].edited == {} and (await world.metrics())["split"] == 0


async def test_keep_is_the_default(world):
    world.engine.options = {"text": THOUGHT}
    got = await world.post()
    assert json.loads(got.raw)["choices"][0]["message"]["content"] == THOUGHT


async def test_cut_by_length_in_a_thought(world):
    route(world, stream_ids=True)
    world.engine.options = {"text": "<think> on and on"}
    assert streamed((await world.post({"stream": True})).raw) == ("", "on and on")
    got = json.loads((await world.post()).raw)["choices"][0]["message"]
    assert (got["content"], got["reasoning_content"]) == ("", "on and on")


async def test_a_stream_that_breaks_in_a_thought_is_recorded_split(world):
    route(world, stream_ids=True)

    async def answer(request, body):
        return await world.engine.stream(request, chunks(body, text=THOUGHT)[:4], done=False)

    world.engine.answer = answer
    await world.post({"stream": True})
    (call,) = world.store.calls
    assert (call.status, call.response["reasoning_content"]) == ("error", "he is")


async def test_choices_are_split_apart(world):
    route(world)

    async def answer(request, body):
        two = [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for i, text in enumerate([THOUGHT, "plain"])
        ]
        return web.json_response({"choices": two})

    world.engine.answer = answer
    got = json.loads((await world.post({"n": 2})).raw)
    assert [c["message"].get("reasoning_content") for c in got["choices"]] == ["he is the seer", None]


async def test_completions_are_left_alone(world):
    route(world)
    world.engine.options = {"text": THOUGHT}
    got = await world.post({"prompt": "x"}, path="/completions")
    assert json.loads(got.raw)["choices"][0]["text"] == THOUGHT


@pytest.mark.parametrize(
    ("policy", "paths", "reasons"), [("keep", 1, {}), ("split", 2, {"think-stripped": 1})]
)
async def test_two_turns_train_each_token_once_and_say_why_they_are_apart(world, policy, paths, reasons):
    """An agent that gets the reasoning apart does not send it back: the second prompt is not the first turn
    and its answer any more. Both turns are trained, in rows of their own, and the break has its name.
    """
    says = iter(["<think>wolf?</think>我是村民。", "<think>again</think>投5号。"])
    async with ModelServer(lambda body: next(says)) as server:
        world.gateway.add_route(
            Upstream(url=server.url, model="tiny", settings=RouteSection(reasoning=policy))
        )
        messages = [{"role": "user", "content": "请发言"}]
        for turn in range(2):
            got = json.loads((await world.post({"messages": messages})).raw)["choices"][0]["message"]
            messages += [
                {"role": "assistant", "content": got["content"]},
                {"role": "user", "content": f"第{turn + 1}天"},
            ]
        calls = world.store.calls
        assert [call.response_ids for call in calls] == [e.answers[0].ids for e in server.log]
        assert [call.prompt_ids for call in calls] == [e.prompt_ids for e in server.log]
    forest = build_forest(calls)
    assert (len(forest.paths), forest.merge_failures) == (paths, reasons)
    own = [call.call_id for path in forest.paths for call in path.own]
    assert sorted(own) == [call.call_id for call in calls], "each response is trained once"


@pytest.mark.parametrize("stream_ids", [True, False])
async def test_the_sdk_gets_it_apart(world, stream_ids):
    client, asked = (
        openai.AsyncOpenAI(base_url=world.url, api_key=world.key),
        [{"role": "user", "content": "hi"}],
    )
    world.gateway.add_route(
        Upstream(
            url=world.engine.url,
            model="tiny",
            stream_ids=stream_ids,
            settings=RouteSection(reasoning="split"),
        )
    )
    world.engine.options = {"text": "<think> hm </think> yes"}
    answer = await client.chat.completions.create(model="m", messages=asked)
    message = answer.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("yes", "hm")
    assert answer.choices[0].model_extra["token_ids"] == tokens_of("<think> hm </think> yes")[0]
    stream = await client.chat.completions.create(model="m", messages=asked, stream=True)
    deltas = [c.choices[0].delta async for c in stream]
    assert "".join(d.content or "" for d in deltas) == "yes"
    assert "".join((d.model_extra or {}).get("reasoning_content") or "" for d in deltas) == "hm"
    await client.close()


@pytest.mark.parametrize("item", faults.STREAMS.values(), ids=faults.STREAMS)
async def test_a_stream_nobody_can_read(world, item):
    """As without an edit of its reasoning."""
    settings = RouteSection(reasoning="split")
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", stream_ids=True, settings=settings))
    await faults.answers_bad(world, item)
