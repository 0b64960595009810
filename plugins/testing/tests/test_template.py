from __future__ import annotations

import pytest
from agl_testing import tool_call
from agl_testing.template import END, MARKS, body, decode, encode, render
from hypothesis import given, strategies as st

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "add"}}


@given(st.text())
def test_text_survives(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.lists(st.sampled_from([*MARKS, "a", "é", "<", ">", "|"])).map("".join))
def test_marks_are_single_tokens(text: str) -> None:
    assert decode(encode(text)) == text
    assert sum(i >= 256 for i in encode(text)) == sum(text.count(mark) for mark in MARKS)


def test_the_prompt_by_hand() -> None:
    assert render([USER]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render([USER], [TOOL]).startswith('<|im_start|>system\n# Tools\n{"function": {"name": "add"}')


@given(st.text(), st.sampled_from([None, "text"]))
def test_an_answer_that_comes_back_verbatim_extends_its_prompt(text: str, content: str | None) -> None:
    for answer in ({"role": "assistant", "content": text}, tool_call("add", text, content=content)):
        sampled = encode(render([USER], [TOOL])) + encode(body(answer)) + [END]
        following = encode(render([USER, answer, {"role": "tool", "content": "3"}], [TOOL]))
        assert following[: len(sampled)] == sampled


@pytest.mark.parametrize(
    "changed",
    [
        [USER, tool_call("add", '{"a": 1}'), USER],
        [USER, tool_call("add", '{"a":1}', content="because"), USER],
        [USER, tool_call("sub", '{"a":1}'), USER],
        [{**USER, "content": [{"type": "text", "text": "hi!"}]}, tool_call("add", '{"a":1}'), USER],
    ],
)
def test_what_is_changed_or_dropped_changes_the_ids(changed: list[dict[str, object]]) -> None:
    original = [USER, tool_call("add", '{"a":1}'), USER]
    assert encode(render(changed, [TOOL])) != encode(render(original, [TOOL]))
    assert encode(render(original)) != encode(render(original, [TOOL]))


def test_parts_and_text_are_the_same() -> None:
    assert render([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]) == render([USER])
