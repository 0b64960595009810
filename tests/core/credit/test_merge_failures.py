"""Breaks: a call that continues another by its messages, and not by its ids, has a reason."""

from __future__ import annotations

import pytest
from core.credit.builders import make_call

from agentlightning.credit import build_forest

SYSTEM = {"role": "system", "content": "be brief"}
ASK = {"role": "user", "content": "2 + 2?"}
MORE = {"role": "user", "content": "sure?"}


def said(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def chat(call_id, messages, answer, prompt, response, sequence, **fields):
    return make_call(
        call_id,
        prompt,
        response,
        sequence,
        request={"messages": messages},
        response=said(answer) if isinstance(answer, str) else answer,
        **fields,
    )


def breaks(*calls):
    return build_forest(list(calls)).merge_failures


FIRST = chat("a", [SYSTEM, ASK], "four", [1, 2, 3, 4, 5, 6], [10, 11, 12], 0)


def follow(answer, prompt, **fields):
    return chat("b", [SYSTEM, ASK, said(answer), MORE], "yes", prompt, [20], 1, **fields)


def test_a_continuation_that_merges_is_no_break():
    assert breaks(FIRST, follow("four", [1, 2, 3, 4, 5, 6, 10, 11, 12, 7])) == {}


def test_retokenised():
    assert breaks(FIRST, follow("four", [1, 2, 3, 4, 5, 6, 10, 13, 7])) == {"retokenised": 1}


def test_template():
    assert breaks(FIRST, follow("four", [1, 9, 3, 4, 5, 6, 10, 11, 12, 7])) == {"template": 1}
    assert breaks(FIRST, follow("four", [1, 2, 3, 4, 5, 6, 10, 11, 12])) == {"template": 1}


def test_edited():
    assert breaks(FIRST, follow("five", [1, 2, 3, 4, 5, 6, 14, 7])) == {"edited": 1}


@pytest.mark.parametrize(
    ("answer", "quoted"),
    [
        (said("<think>hm</think>four"), "four"),
        (said("<think>hm</think>four"), "<think>hm</think>four"),  # the template strips it
        (said("hm</think>\n\nfour"), "four"),  # the template opens it
        (said("four", reasoning_content="hm"), "four"),  # the gateway splits it
    ],
)
def test_think_stripped(answer, quoted):
    first = chat("a", [SYSTEM, ASK], answer, [1, 2, 3, 4, 5, 6], [30, 31, 32, 33, 34, 10], 0)
    assert breaks(first, follow(quoted, [1, 2, 3, 4, 5, 6, 10, 7])) == {"think-stripped": 1}


def test_reasoning_that_is_kept_can_still_be_retokenised():
    first = chat("a", [ASK], said("<think>hm</think>four"), [1, 2], [30, 31, 32, 33, 34, 35, 36, 10], 0)
    later = chat(
        "b", [ASK, said("<think>hm</think>four")], "x", [1, 2, 30, 31, 32, 33, 34, 35, 99, 7], [20], 1
    )
    assert breaks(first, later) == {"retokenised": 1}


def test_truncated():
    history = [SYSTEM, ASK, said("four"), MORE]
    first = chat("a", history, "yes", [1, 2, 3, 4, 5, 6], [10], 0)
    later = chat("b", [SYSTEM, MORE, said("yes"), ASK], "four", [1, 4, 5, 10, 7], [20], 1)
    assert breaks(first, later) == {"truncated": 1}


def test_temperature():
    assert breaks(FIRST, follow("four", [1, 2, 3, 4, 5, 6, 10, 11, 12, 7], temperature=0.5)) == {
        "temperature": 1
    }


def test_of_parallel_samples_the_quoted_one_is_continued():
    prompt = [1, 2, 3]
    samples = [
        chat("a", [ASK], "three", prompt, [10], 0, choice=0),
        chat("b", [ASK], "four", prompt, [11], 0, choice=1),
    ]
    later = chat("c", [ASK, said("four"), MORE], "yes", [1, 2, 3, 11, 7], [20], 1)
    assert breaks(*samples, later) == {}
    assert [[c.call_id for c in p.own] for p in build_forest([*samples, later]).paths] == [["a"], ["b", "c"]]


def test_a_broken_line_that_falls_back_on_an_older_turn_has_the_named_reason_not_branch():
    second = follow("four", [1, 2, 3, 4, 5, 6, 10, 11, 12, 7])
    third = chat(
        "c",
        [SYSTEM, ASK, said("four"), MORE, said("yes"), ASK],
        "four",
        [1, 2, 3, 4, 5, 6, 10, 11, 12, 7, 99],
        [30],
        2,
    )
    assert breaks(FIRST, second, third) == {"retokenised": 1}


def test_tool_calls_count_as_what_was_said():
    tool = {"tool_calls": [{"id": "x", "function": {"name": "calc", "arguments": '{"e": "2+2"}'}}]}
    again = {"tool_calls": [{"id": "y", "function": {"name": "calc", "arguments": '{"e": "2+2"}'}}]}
    first = chat("a", [ASK], said(None, **tool), [1, 2], [10, 11], 0)
    later = chat(
        "b", [ASK, said("", **again), {"role": "tool", "content": "4"}], "four", [1, 2, 10, 12], [20], 1
    )
    assert breaks(first, later) == {"retokenised": 1}


def test_content_parts_are_text():
    parts = {"role": "user", "content": [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]}
    later = chat("b", [SYSTEM, parts, said("four"), MORE], "yes", [1, 9, 3], [20], 1)
    assert breaks(FIRST, later) == {"template": 1}


def test_what_continues_nothing_has_no_break():
    assert breaks(FIRST, chat("b", [SYSTEM, MORE], "yes", [8, 9], [20], 1)) == {}
    assert breaks(make_call("a", [1], [2], 0), make_call("b", [3], [4], 1)) == {}
    few_shot = chat("b", [SYSTEM, MORE, said("a worked example"), ASK], "yes", [8, 9], [20], 1)
    assert breaks(FIRST, few_shot) == {}


@pytest.mark.parametrize("request_body", [None, {}, {"messages": "text"}, {"messages": [3]}, {"prompt": "x"}])
@pytest.mark.parametrize(
    "response_body", [None, {}, {"text": "x"}, {"message": None}, {"message": {"content": 3}}]
)
def test_odd_bodies_are_no_trouble(request_body, response_body):
    odd = make_call("b", [8, 9], [20], 1, request=request_body, response=response_body)
    assert breaks(FIRST, odd, follow("four", [1, 2, 3, 4, 5, 6, 10, 11, 12, 7], policy="default")) == {}
