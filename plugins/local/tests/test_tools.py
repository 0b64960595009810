from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, strategies as st

from agl_local.text.cores import HERMES
from agl_local.text.tools import CallStream, parse_calls

GOOD = '<tool_call>\n{"name": "add", "arguments": {"a":1,  "b": [2, "}"]}}\n</tool_call>'
PIECES = st.sampled_from([
    GOOD, "<tool_call>", "</tool_call>", "<tool", "_call>", "{", "}", '{"name": "f"}', "text", " ", "\n", "é",
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
])  # fmt: skip
TEXTS = st.lists(PIECES, max_size=8).map("".join)


def feed(pieces):
    stream = CallStream(HERMES, lambda k: f"id{k}")
    out = [stream.push(piece) for piece in pieces] + [stream.finish()]
    return "".join(text for text, _ in out), [call for _, calls in out for call in calls], stream


def test_a_call_keeps_its_arguments_character_by_character():
    content, calls = parse_calls(GOOD, HERMES)
    assert content is None
    assert calls[0].name == "add" and calls[0].arguments == '{"a":1,  "b": [2, "}"]}'
    assert calls[0].to_openai()["function"] == {"name": "add", "arguments": calls[0].arguments}
    assert calls[0].to_openai()["type"] == "function" and calls[0].id.startswith("call_")


def test_arguments_may_come_first_and_keep_escapes():
    _, calls = parse_calls('<tool_call>{"arguments": {"x": "\\u00fc\\n"}, "name": "f"}</tool_call>', HERMES)
    assert calls[0].arguments == '{"x": "\\u00fc\\n"}'


@pytest.mark.parametrize(
    ("text", "content", "count"),
    [
        ("plain", "plain", 0),
        ("", "", 0),
        (f"Let me see. {GOOD}", "Let me see.", 1),
        (f"{GOOD}\n{GOOD}\n", None, 2),
        (f"before {GOOD} after", "before after", 1),
        (f"{GOOD} after ", "after ", 1),
        (f"<tool_call>broken {GOOD}", "<tool_call>broken", 1),
    ],
)
def test_content_and_calls(text, content, count):
    parsed = parse_calls(text, HERMES)
    assert (parsed.content, len(parsed.calls)) == (content, count)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("not json", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"name": "f"}', "no 'arguments'"),
        ('{"arguments": {}}', "no 'name'"),
        ('{"name": 3, "arguments": {}}', "printable string"),
        ('{"name": "\\ud800", "arguments": {}}', "printable string"),
        ('{"name": "f", "arguments": "{}"}', "are str, not an object"),
        ('{"name": "f", "arguments": {"a": NaN}}', "NaN"),
        ('{"name": "f", "arguments": {}} trailing', "text after"),
        ('{"name": "f", "arguments": {}, "id": 1}', "unexpected keys"),
        ('{"name": "f", "name": "g", "arguments": {}}', "twice"),
        ('{"name": "f", "arguments": {"a": ' + "[" * 100000 + "}}", "nested too deeply|Expecting"),
    ],
)
def test_a_malformed_call_stays_in_the_content_with_a_reason(body, why):
    text = f"x <tool_call>{body}</tool_call> y"
    parsed = parse_calls(text, HERMES)
    assert parsed.content == text and not parsed.calls
    assert len(parsed.malformed) == 1
    assert re.search(why, parsed.malformed[0])


def test_a_call_that_is_cut_off_stays_in_the_content():
    parsed = parse_calls(GOOD[:-5], HERMES)
    assert parsed.content == GOOD[:-5] and "ends before" in parsed.malformed[0]


@given(TEXTS | st.text(max_size=30))
def test_nothing_is_lost(text):
    parsed = parse_calls(text, HERMES)
    assert "".join(raw for _, raw in parsed.segments) == text
    kept = "".join(raw for kind, raw in parsed.segments if kind == "text")
    assert sum(kind == "call" for kind, _ in parsed.segments) == len(parsed.calls)
    assert (parsed.content or "") == kept
    assert all(raw.isspace() for kind, raw in parsed.segments if kind == "space")
    for call in parsed.calls:
        assert isinstance(json.loads(call.arguments), dict) and call.arguments in text


@given(TEXTS, st.data())
def test_any_pieces_give_the_same_parse(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse_calls(text, HERMES, lambda k: f"id{k}")
    content, calls, stream = feed(pieces)
    assert content == (whole.content or "") and calls == whole.calls
    assert stream.malformed == whole.malformed
