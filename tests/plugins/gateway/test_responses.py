"""The Responses API as chat completions, and back: pure translation."""

import pytest
from agl_gateway.apis.responses import IGNORED, REFUSED, RESPONSES, TRANSLATED

from agentlightning.gateway.errors import RequestRefused

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":  1}'}
TOOL = {
    "type": "function",
    "name": "add",
    "description": "adds",
    "parameters": {"type": "object"},
    "strict": True,
}


def chat_body(asked):
    return RESPONSES.chat_body(asked)


def messages(*items, **more):
    return chat_body({"model": "m", "input": list(items), **more})["messages"]


def chat(message, finish="stop", **more):
    return {
        "id": "x",
        "created": 3,
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **more}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }


def test_text_and_instructions():
    body = chat_body({"model": "m", "input": "hi", "instructions": "be kind", "stream": True})
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "be kind"}, USER],
        "stream": True,
    }


def test_settings():
    asked = {
        "model": "m", "input": "hi", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 7, "seed": 3,
        "parallel_tool_calls": False, "top_k": 5, "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "add"},
        "guided_choice": ["a", "b"],
    }  # fmt: skip
    body = chat_body(asked)
    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert (body["max_completion_tokens"], body["seed"], body["top_k"]) == (7, 3, 5)
    assert (body["temperature"], body["top_p"], body["parallel_tool_calls"]) == (0.5, 0.9, False)
    assert body["guided_choice"] == ["a", "b"]


def test_a_turn_of_the_model_is_one_message():
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "let me see"}],
    }
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    result = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}
    turn = {"role": "assistant", "content": "let me see", "tool_calls": [call]}
    tool = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    assert messages(USER, said, CALL, result) == [USER, turn, tool]
    assert messages(USER, thought, said, CALL)[1] == {**turn, "reasoning_content": "hm"}
    assert messages(USER, CALL, {**CALL, "call_id": "c2"})[1]["content"] is None
    assert [call["id"] for call in messages(USER, CALL, {**CALL, "call_id": "c2"})[1]["tool_calls"]] == [
        "c1",
        "c2",
    ]
    assert messages(said, said) == [{"role": "assistant", "content": "let me see"}] * 2


def test_roles_and_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages({"role": "developer", "content": parts}) == [{"role": "system", "content": "a\nb"}]
    output = {"type": "function_call_output", "call_id": "c1", "output": parts}
    assert messages(USER, CALL, output)[-1]["content"] == "a\nb"


def test_reasoning_that_only_its_vendor_can_read_is_left_out():
    assert messages(USER, {"type": "reasoning", "summary": [], "encrypted_content": "…"}, USER) == [
        USER,
        USER,
    ]


def test_structured_output():
    form = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
    body = chat_body({"model": "m", "input": "hi", "text": {"format": form, "verbosity": "low"}})
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    }
    assert "response_format" not in chat_body(
        {"model": "m", "input": "hi", "text": {"format": {"type": "text"}}}
    )


def test_namespaces_are_flat_towards_the_engine():
    asked = {"model": "m", "input": "hi", "tools": [{"type": "namespace", "name": "team", "tools": [TOOL]}]}
    assert chat_body(asked)["tools"][0]["function"]["name"] == "team__add"
    call = {"id": "c1", "type": "function", "function": {"name": "team__add", "arguments": "{}"}}
    (item,) = RESPONSES.answer(asked, chat({"role": "assistant", "content": None, "tool_calls": [call]}))[
        "output"
    ]
    assert (item["namespace"], item["name"]) == ("team", "add")
    again = chat_body({**asked, "input": [USER, item]})["messages"][-1]
    assert again["tool_calls"][0]["function"]["name"] == "team__add"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"prompt": {"id": "p"}}, "send instructions and input"),
        ({"background": True}, "wait for the answer"),
        ({"truncation": "auto"}, "over_length"),
        ({"include": ["file_search_call.results"]}, "file_search_call.results"),
        ({"tools": [{"type": "web_search"}]}, "tools[0] of type 'web_search'"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"tools": [{"type": "mcp"}]}, "offer its tools as function tools"),
        ({"tools": [{"type": "computer_use_preview"}]}, "operate the computer in a function tool"),
        ({"tools": [{"type": "code_interpreter"}]}, "run code in a function tool"),
        ({"tools": [{"type": "image_generation"}]}, "make images in a function tool"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0] of type 'web_search_call'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"whatever": 1}, "whatever is not served here; leave it out"),
    ],
)
def test_what_chat_completions_cannot_say_is_refused(asked, says):
    with pytest.raises(RequestRefused, match="not served") as refused:
        chat_body({"model": "m", "input": "hi", **asked})
    assert says in str(refused.value)
    assert (refused.value.status, refused.value.reason, refused.value.retry) == (
        400,
        "unsupported-field",
        False,
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"input": None}, "input must be a text or a list of items"),
        ({"input": []}, "input must be"),
        ({"input": [3]}, "input[0] must be an object, got int"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role must be one of"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments must be a text, got dict"),
        ({"tools": {}, "input": [{"role": "user", "content": 3}]}, "input[0].content must be a list"),
        ({"instructions": 3}, "instructions must be a text"),
        ({"tools": [{"type": "function"}]}, "tools[0].name must be a text"),
        ({"text": 3}, "text must be an object"),
    ],
)
def test_what_is_no_request_is_said(asked, says):
    with pytest.raises(RequestRefused) as refused:
        chat_body({"model": "m", "input": "hi", **asked})
    assert says in str(refused.value) and refused.value.reason == "bad-body"


def test_bookkeeping_is_taken_and_nothing_is_in_two_tables():
    chat_body(
        {"model": "m", "input": "hi", **dict.fromkeys(IGNORED, "x"), "background": False, "prompt": None}
    )
    assert not IGNORED & TRANSLATED and not REFUSED.keys() & (IGNORED | TRANSLATED)


def test_answer():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}
    message = {"role": "assistant", "content": "see", "reasoning_content": "hm", "tool_calls": [call]}
    logprobs = {"content": [{"token": "s", "logprob": -0.5, "top_logprobs": []}]}
    whole = chat(message, "tool_calls", token_ids=[4], logprobs=logprobs) | {"prompt_token_ids": [1, 2]}
    answer = RESPONSES.answer({"model": "m", "input": "hi", "tools": [TOOL], "temperature": 0.5}, whole)
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    assert answer["output"][2]["arguments"] == '{"a":  1}'
    assert (answer["status"], answer["temperature"], answer["tools"]) == ("completed", 0.5, [TOOL])
    assert (answer["id"], answer["model"], answer["created_at"]) == ("x", "tiny", 3)
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (5, 2)
    assert (answer["prompt_token_ids"], answer["token_ids"], answer["token_logprobs"]) == (
        [1, 2],
        [4],
        [-0.5],
    )


def test_an_answer_cut_by_length_is_incomplete():
    answer = RESPONSES.answer({}, chat({"role": "assistant", "content": "hel"}, "length"))
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][-1]["status"] == "incomplete"


def test_asked_for_logprobs_are_in_the_text():
    logprobs = {"content": [{"token": "s", "logprob": -0.5, "top_logprobs": []}]}
    asked = {"model": "m", "input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    assert chat_body(asked)["logprobs"] is True and chat_body(asked)["top_logprobs"] == 1
    answer = RESPONSES.answer(asked, chat({"role": "assistant", "content": "s"}, logprobs=logprobs))
    assert answer["output"][0]["content"][0]["logprobs"] == logprobs["content"]


def test_an_empty_answer_is_an_empty_message():
    (item,) = RESPONSES.answer({}, chat({"role": "assistant", "content": None}))["output"]
    assert item["content"][0]["text"] == ""


def test_a_refusal_is_a_part():
    (item,) = RESPONSES.answer({}, chat({"role": "assistant", "content": None, "refusal": "no"}))["output"]
    assert item["content"] == [{"type": "refusal", "refusal": "no"}]
