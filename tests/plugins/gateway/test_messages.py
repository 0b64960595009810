"""The Messages API as chat completions, and back: pure translation."""

import json

import msgspec
import pytest
from agl_gateway.apis.messages import IGNORED, MESSAGES, REFUSED, TRANSLATED, UNREADABLE
from plugins.gateway.test_responses import chat

from agentlightning.gateway.errors import TOO_LONG, RequestRefused, error_body

USER = {"role": "user", "content": "hi"}
TEXT = {"type": "text", "text": "x"}
USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}


def body(*turns, said=(), **more):
    return MESSAGES.chat_body(
        {"model": "m", "max_tokens": 9, "messages": list(turns) or [USER], **more}, dict(said)
    )


def test_text_and_system():
    system = [
        {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "kind"},
    ]
    assert body(system=system, stream=True) == {
        "model": "m",
        "messages": [{"role": "system", "content": "be\nkind"}, USER],
        "max_tokens": 9,
        "stream": True,
    }
    assert body(USER, {"role": "system", "content": "and brief"})["messages"][1]["role"] == "system"


def test_settings():
    sent = body(
        stop_sequences=["END"],
        temperature=0.2,
        top_p=0.9,
        top_k=4,
        seed=2,
        tools=[{"name": "add", "description": "adds", "input_schema": {"type": "object"}, "type": "custom"}],
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
    )
    assert sent["stop"] == ["END"] and sent["parallel_tool_calls"] is False
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["seed"]) == (0.2, 0.9, 4, 2)
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(("kind", "choice"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_tool_choice(kind, choice):
    assert body(tool_choice={"type": kind})["tool_choice"] == choice


def test_structured_output():
    form = {"type": "json_schema", "schema": {"type": "object"}}
    expected = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    assert body(output_config={"format": form, "effort": "high"})["response_format"] == expected
    assert body(output_format=form)["response_format"] == expected


def test_a_turn_of_the_model_is_one_message():
    said = {"role": "assistant", "content": [{"type": "text", "text": "see"}, USE]}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "2"}],
        "is_error": True,
    }
    back = {"role": "user", "content": [result, {"type": "text", "text": "go on"}]}
    call = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert body(USER, said, back)["messages"] == [
        USER,
        {"role": "assistant", "content": "see", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
        {"role": "user", "content": "go on"},
    ]
    alone = body(USER, {"role": "assistant", "content": [USE]}, back)["messages"][1]
    assert alone == {"role": "assistant", "content": None, "tool_calls": [call]}


def test_thinking_goes_back_as_reasoning():
    blocks = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "yes"}]
    turn = body(USER, {"role": "assistant", "content": blocks}, USER)["messages"][1]
    assert turn == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("written", "given", "sent"),
    [
        ('{"a":  1}', {"a": 1}, '{"a":  1}'),
        ('{"a": 1.0, "b": "\\u00e9"}', {"b": "é", "a": 1}, '{"a": 1.0, "b": "\\u00e9"}'),
        ("", {}, ""),
        ("{broken", {UNREADABLE: "{broken"}, "{broken"),
        ("[1]", {UNREADABLE: "[1]"}, "[1]"),
        ('{"a":  1}', {"a": 2}, '{"a": 2}'),
        (None, {"a": "é"}, '{"a": "é"}'),
    ],
)
def test_arguments_come_back_as_the_model_wrote_them(written, given, sent):
    said = {} if written is None else {"t1": ["[0]", written]}
    turn = {"role": "assistant", "content": [{**USE, "input": given}]}
    call = body(USER, turn, USER, said=said)["messages"][1]["tool_calls"][0]
    assert call["function"]["arguments"] == sent


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "no thinking budget"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "over_length"),
        ({"output_config": {"task_budget": {"tokens": 3}}}, "output_config.task_budget"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0] of type 'document'",
        ),
        (
            {"messages": [{"role": "user", "content": [TEXT, {"type": "document"}]}]},
            "messages[0].content[1] of type",
        ),
        ({"messages": [USER, {"role": "assistant", "content": "I"}]}, "end with the user's turn"),
        ({"whatever": 1}, "whatever is not served here; leave it out"),
    ],
)
def test_what_chat_completions_cannot_say_is_refused(asked, says):
    with pytest.raises(RequestRefused) as refused:
        MESSAGES.chat_body({"model": "m", "max_tokens": 9, "messages": [USER], **asked})
    assert says in str(refused.value)
    assert refused.value.reason == "unsupported-field"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"max_tokens": None}, "max_tokens must be a number of tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages must be a list of at least one message"),
        ({"messages": ["x"]}, "messages[0] must be an object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "content": [{**USE, "input": "x"}]}, USER]},
            ".input must be an object",
        ),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema must be an object"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"system": 3}, "system must be a list"),
    ],
)
def test_what_is_no_request_is_said(asked, says):
    with pytest.raises(RequestRefused) as refused:
        MESSAGES.chat_body({"model": "m", "max_tokens": 9, "messages": [USER], **asked})
    assert says in str(refused.value) and refused.value.reason == "bad-body"


def test_what_the_coding_agents_send_is_taken():
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    body(thinking={"type": "adaptive"}, context_management=edits, output_config={"effort": "high"})
    body(**dict.fromkeys(IGNORED, "x"))
    assert not IGNORED & TRANSLATED and not REFUSED.keys() & (IGNORED | TRANSLATED)


def test_answer():
    call = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}
    said = {"role": "assistant", "content": "see", "reasoning": "hm", "tool_calls": [call]}
    answer = MESSAGES.answer(
        {"model": "m"}, chat(said, "tool_calls", token_ids=[4]) | {"prompt_token_ids": [1]}
    )
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["content"][2]["input"] == {"a": 1}
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (5, 2)
    assert (answer["prompt_token_ids"], answer["token_ids"]) == ([1], [4])


@pytest.mark.parametrize(
    ("finish", "more", "reason"),
    [
        ("stop", {}, ("end_turn", None)),
        ("stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
        ("stop", {"stop_reason": 257}, ("end_turn", None)),
        ("length", {}, ("max_tokens", None)),
        ("content_filter", {}, ("refusal", None)),
    ],
)
def test_why_it_stopped(finish, more, reason):
    answer = MESSAGES.answer({}, chat({"role": "assistant", "content": ""}, finish, **more))
    assert (answer["stop_reason"], answer["stop_sequence"]) == reason
    assert answer["content"] == [{"type": "text", "text": ""}]


def test_errors():
    error = json.loads(MESSAGES.error(400, error_body(400, TOO_LONG, "it has 9")))["error"]
    assert error["type"] == "invalid_request_error" and error["message"] == "prompt is too long: it has 9"
    assert (
        json.loads(MESSAGES.error(503, error_body(503, "store-failed", "x")))["error"]["type"]
        == "overloaded_error"
    )
    assert json.loads(MESSAGES.error(502, b"<html>"))["error"] == {
        "type": "api_error",
        "message": "<html>",
        "code": "http-502",
    }
    assert json.loads(MESSAGES.error(418, msgspec.json.encode({"detail": "tea"})))["type"] == "error"
