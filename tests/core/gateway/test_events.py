"""Framing, assembly and replay, without a network."""

import json

import pytest
from core.gateway.conftest import whole
from hypothesis import given, settings, strategies as st

from agentlightning.gateway.answer import AnswerAssembler, parse_answer, parse_chunk
from agentlightning.gateway.apis import DONE, replay
from agentlightning.gateway.errors import BadAnswer
from agentlightning.gateway.stream import EVENT_LIMIT, EventSplitter, payload

texts = st.text(max_size=120)


@settings(deadline=None)
@given(
    events=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30), max_size=8
    ),
    ending=st.sampled_from(["\n\n", "\r\n\r\n"]),
    data=st.data(),
)
def test_any_cut_gives_the_same_events(events, ending, data):
    raw = "".join(f"data: {e}{ending}" for e in events).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    splitter, out = EventSplitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        out += splitter.feed(raw[start:end])
    out += splitter.end()
    assert b"".join(out) == raw
    assert [payload(e) for e in out] == [e.encode() for e in events]


@pytest.mark.parametrize(
    ("event", "want"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b": comment\n\n", None),
        (b"event: e\r\ndata: x\r\n\r\n", b"x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"id: 1\n\n", None),
    ],
)
def test_payload(event, want):
    assert payload(event) == want


def test_an_endless_event_is_refused():
    with pytest.raises(BadAnswer, match="longer than"):
        EventSplitter().feed(b"data: " + b"x" * EVENT_LIMIT)


def put_together(raw, api, expected=1):
    assembler = AnswerAssembler(api, expected)
    for event in EventSplitter().feed(raw):
        if payload(event) != DONE:
            assembler.add(parse_chunk(payload(event)))
    assert assembler.finished and not assembler.empty
    return assembler.answer()


@settings(deadline=None)
@given(
    text=texts,
    tool=st.none() | st.tuples(st.text(min_size=1, max_size=9), texts),
    n=st.integers(1, 3),
    reasoning=texts,
)
def test_replayed_chat_is_the_answer(text, tool, n, reasoning):
    body = whole({"model": "m", "n": n}, text=text, tool=tool, policy_version=3)
    for choice in body["choices"]:
        if reasoning:
            choice["message"]["reasoning"] = reasoning
    raw = json.dumps(body).encode()
    want, got = parse_answer(raw, "chat"), put_together(b"".join(replay(raw, "chat", True)), "chat", n)
    assert (got.id, got.usage, got.prompt_token_ids, got.policy_version) == (
        want.id,
        want.usage,
        want.prompt_token_ids,
        3,
    )
    for a, b in zip(want.choices, got.choices, strict=True):
        message = {k: v for k, v in a.message.items() if v is not None}
        if tool is None:
            message["content"] = text
        assert {k: v for k, v in b.message.items() if v is not None} == message
        assert (b.token_ids, b.finish_reason, b.index) == (a.token_ids, a.finish_reason, a.index)
        assert b.logprobs.values() == a.logprobs.values()


@settings(deadline=None)
@given(text=texts)
def test_replayed_completion_is_the_answer(text):
    raw = json.dumps(whole({"model": "m"}, text=text, api="completions")).encode()
    got = put_together(b"".join(replay(raw, "completions", False)), "completions")
    want = parse_answer(raw, "completions")
    assert got.choices[0].text == text and got.usage is None
    assert got.choices[0].prompt_token_ids == want.choices[0].prompt_token_ids
    assert got.choices[0].token_ids == want.choices[0].token_ids


def test_tool_calls_grow_by_index():
    assembler = AnswerAssembler("chat")
    for delta in (
        [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}],
        [{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": ": 1}"}}, {"index": 1, "function": {"arguments": "{}"}}],
    ):
        assembler.add(parse_chunk(json.dumps({"choices": [{"delta": {"tool_calls": delta}}]}).encode()))
    (choice,) = assembler.answer().choices
    assert [t["function"] for t in choice.message["tool_calls"]] == [
        {"name": "f", "arguments": '{"x": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert choice.message["content"] is None and not assembler.finished


def test_the_version_of_a_stream_of_several_choices_is_the_oldest():
    assembler = AnswerAssembler("completions", expected=2)
    for index, version in ((0, 3), (1, 4), (0, 3), (1, 5)):
        chunk = {"choices": [{"index": index, "text": "a"}], "policy_version": version}
        assembler.add(parse_chunk(json.dumps(chunk).encode()))
    assert assembler.answer().policy_version == 3


def test_each_token_of_a_stream_keeps_its_version():
    assembler = AnswerAssembler("completions", expected=2)
    for index, ids, version, versions in (
        (0, [1, 2], 3, None),
        (1, [7], 4, None),
        (0, [3, 4], 3, [3, 4]),
        (0, [], 3, None),
        (1, [8], 4, None),
    ):
        piece = {"index": index, "text": "a", "token_ids": ids, "policy_versions": versions}
        assembler.add(parse_chunk(json.dumps({"choices": [piece], "policy_version": version}).encode()))
    first, second = assembler.answer().choices
    assert first.policy_versions == [3, 3, 3, 4]
    assert second.policy_versions == [4, 4], "the answer's version is another choice's"


def test_one_version_of_all_tokens_of_a_stream_is_said_once():
    assembler = AnswerAssembler("completions")
    piece = {"text": "a", "token_ids": [1]}
    for _ in range(2):
        assembler.add(parse_chunk(json.dumps({"choices": [piece], "policy_version": 3}).encode()))
    (choice,) = assembler.answer().choices
    assert choice.policy_versions is None and assembler.answer().policy_version == 3


@pytest.mark.parametrize("tool", ["x", {"index": "0"}, 3])
def test_a_broken_tool_call_is_a_bad_answer(tool):
    with pytest.raises(BadAnswer):
        AnswerAssembler("chat").add(
            parse_chunk(json.dumps({"choices": [{"delta": {"tool_calls": [tool]}}]}).encode())
        )
