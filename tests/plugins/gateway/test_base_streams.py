"""Whatever a model says: it comes back as the turn it was, and a stream adds up to the whole answer."""

import asyncio
import json

from agl_gateway.apis.history import Earlier
from agl_gateway.apis.items import turn_of
from agl_gateway.apis.messages import MESSAGES
from agl_gateway.apis.responses import RESPONSES
from agl_gateway.apis.translated import WrittenArguments
from core.gateway.conftest import StoreDouble
from hypothesis import given, settings, strategies as st
from plugins.gateway.test_formats import sent_events

from agentlightning.gateway.attempts import AttemptInfo, OpenAttempt
from agentlightning.types import Call

TEXTS = st.text(max_size=130)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    st.sampled_from([None, 1]),
    st.booleans(),
) | st.sampled_from(["", "{", "[1]", "null", '{"a":  1.0}'])


@st.composite
def answers(draw):
    """A whole chat answer: reasoning, text, tool calls."""
    arguments = draw(st.lists(ARGUMENTS, max_size=3))
    names = draw(st.lists(st.sampled_from(["add", "look_up"]), min_size=3, max_size=3))
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": written}}
        for n, (name, written) in enumerate(zip(names, arguments, strict=False))
    ]
    content = draw(TEXTS)
    message = {"role": "assistant", "content": content or (None if calls else "")}
    if thought := draw(st.just("") | TEXTS):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    finish = draw(st.sampled_from(["stop", "length"])) if not calls else "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": finish, "token_ids": [7, 8]}
    usage = {"prompt_tokens": 2, "completion_tokens": 2}
    return {"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], "usage": usage}


@given(answers())
@settings(deadline=None)
def test_a_response_sent_back_is_the_turn_that_was_sampled(chat):
    answer = RESPONSES.answer({"model": "m", "input": "hi"}, chat)
    body = RESPONSES.chat_body(
        {"model": "m", "input": [{"role": "user", "content": "hi"}, *answer["output"]]}
    )
    assert body["messages"][1:] == [chat["choices"][0]["message"]]


@given(answers())
@settings(deadline=None)
def test_a_response_continued_is_the_conversation_sent_whole(chat):
    answer = RESPONSES.answer({"model": "m", "input": "hi"}, chat)
    user, more = {"role": "user", "content": "hi"}, {"role": "user", "content": "more"}
    whole = RESPONSES.chat_body({"model": "m", "input": [user, *answer["output"], more]})
    before = [user, *turn_of(chat["choices"][0]["message"], answer["id"])]
    asked = {"model": "m", "input": "more", "previous_response_id": answer["id"]}
    assert RESPONSES.chat_body(asked, Earlier(messages=before)) == whole


@given(answers())
@settings(deadline=None)
def test_a_message_sent_back_is_the_turn_that_was_sampled(chat):
    attempt = OpenAttempt(AttemptInfo(rollout_id="ro", attempt_id="at"), lambda tags: True, StoreDouble())
    call = Call(
        call_id="c",
        rollout_id="ro",
        attempt_id="at",
        sequence=0,
        edited={"api": "messages"},
        response=chat["choices"][0]["message"],
        response_id=chat["id"],
    )
    MESSAGES.remember(attempt, call, {})
    answer = MESSAGES.answer({"model": "m"}, chat)
    user = {"role": "user", "content": "hi"}
    turns = [user, {"role": "assistant", "content": answer["content"]}, user]
    body = MESSAGES.chat_body(
        {"model": "m", "max_tokens": 9, "messages": turns},
        asyncio.run(attempt.part(WrittenArguments).by_id()),
    )
    assert body["messages"][1:2] == [chat["choices"][0]["message"]]


@given(answers())
@settings(deadline=None)
def test_events_of_a_response_add_up(chat):
    answer = json.loads(json.dumps(RESPONSES.answer({"model": "m", "input": "hi"}, chat)))
    events = [event for _, event in sent_events(b"".join(RESPONSES.events(answer)))]
    items, deltas = {}, {}
    for event in events:
        place = event.get("output_index"), event.get("content_index")
        if event["type"] == "response.output_item.added":
            assert event["item"]["status"] == "in_progress" and place[0] == len(items)
        elif event["type"] == "response.output_item.done":
            items[place[0]] = event["item"]
        elif event["type"].endswith(".delta"):
            deltas[place] = deltas.get(place, "") + event["delta"]
        elif event["type"].endswith((".text.done", "_text.done", "arguments.done")):
            assert deltas.get(place, "") == event.get("text", event.get("arguments"))
    assert [items[n] for n in sorted(items)] == answer["output"]
    assert events[-1]["response"] == answer and events[-1]["type"] == f"response.{answer['status']}"
    assert events[0]["response"]["output"] == [] and events[0]["response"]["id"] == answer["id"]


@given(answers())
@settings(deadline=None)
def test_events_of_a_message_add_up(chat):
    answer = json.loads(json.dumps(MESSAGES.answer({"model": "m"}, chat)))
    blocks, usage = [], None
    for name, event in sent_events(b"".join(MESSAGES.events(answer))):
        if name == "message_start":
            message = event["message"]
        elif name == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(
                event["content_block"] | ({"input": ""} if "input" in event["content_block"] else {})
            )
        elif name == "content_block_delta":
            kind = event["delta"]["type"]
            field = {"text_delta": "text", "thinking_delta": "thinking"}.get(kind, "input")
            blocks[event["index"]][field] += event["delta"].get(field, event["delta"].get("partial_json"))
        elif name == "message_delta":
            message |= event["delta"]
            usage = event["usage"]
    for block in blocks:
        if "input" in block:
            block["input"] = json.loads(block["input"])
    assert message | {"content": blocks, "usage": usage} == answer
