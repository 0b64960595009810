"""Calls as spans: merged with wire spans, choices and retries apart, legacy attributes, readable."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from agentlightning import semconv
from agentlightning.store.codec import unpack_floats, unpack_ids
from agentlightning.types import Call, Span
from agl_audit.store.call_spans import attributes, merge_calls


def call(**fields: Any) -> Call:
    return Call(**{"call_id": "c", "rollout_id": "r", "attempt_id": "a", **fields})


def wire(span_id: str, sequence_id: int = 9, **fields: Any) -> Span:
    values: dict[str, Any] = {
        "parent_id": "p",
        "trace_id": "t",
        "attributes": {semconv.LAYER: "wire", "x": 1},
    }
    values |= fields
    return Span(
        rollout_id="r", attempt_id="a", name="chat", span_id=span_id, sequence_id=sequence_id, **values
    )


def test_choices_and_retries_get_spans_of_their_own() -> None:
    calls = [
        (call(call_id="first", span_id="s"), 1),
        (call(call_id="retry", span_id="s", retry=1), 2),
        (call(call_id="second", span_id="s", retry=1, choice=1), 3),
        (call(call_id="alone"), 4),
    ]
    out = merge_calls([wire("s"), wire("other", 5)], calls)
    assert [s.sequence_id for s in out] == [1, 2, 3, 4, 5]
    ids = [s.span_id for s in out]
    assert ids[1] == "s" and ids[4] == "other" and len(set(ids)) == 5
    assert out[1].attributes["x"] == 1 and "x" not in out[0].attributes
    assert {s.parent_id for s in out[:3]} == {"p"} and {s.trace_id for s in out[:3]} == {"t"}


def test_attempts_stay_apart_and_in_order() -> None:
    later = Span(rollout_id="r", attempt_id="b", name="n", sequence_id=1)
    out = merge_calls([wire("s", 2, attributes={}), later], [(call(attempt_id="b", span_id="s"), 2)])
    assert [(s.attempt_id, s.sequence_id) for s in out] == [("a", 2), ("b", 1), ("b", 2)]


def test_tools_reasoning_and_parts_are_shown() -> None:
    tools = [{"id": "t1", "function": {"name": "calc", "arguments": '{"x": 1}'}}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": tools},
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
    ]
    found = attributes(
        call(
            request={"messages": messages}, response={"role": "assistant", "content": "", "tool_calls": tools}
        )
    )
    assert found["gen_ai.prompt.0.content"] == '[{"type": "text", "text": "hi"}]'
    assert found["gen_ai.prompt.1.tool_calls.0.name"] == "calc" and "gen_ai.prompt.1.content" not in found
    assert found["gen_ai.prompt.2.tool_call_id"] == "t1"
    assert found["gen_ai.completion.0.tool_calls.0.arguments"] == '{"x": 1}'


def test_completions_and_failures_are_shown() -> None:
    given = call(
        api="completions", request={"prompt": "Once"}, response={"text": " upon"}, sampling={"top_p": 0.5}
    )
    found = attributes(given)
    assert (found[semconv.OPERATION_NAME], found["gen_ai.prompt.0.content"]) == ("text_completion", "Once")
    assert found["gen_ai.completion.0.content"] == " upon" and found["gen_ai.request.top_p"] == 0.5
    (failed,) = merge_calls([], [(call(status="error", error="boom"), 1)])
    assert (failed.status, failed.status_message) == ("error", "boom")
    assert not any(k.startswith(("gen_ai.completion", "agl.prompt_token")) for k in failed.attributes)


def test_packed_arrays_print_as_their_length() -> None:
    (shown,) = merge_calls([], [(call(prompt_ids=[7] * 300, response_ids=[1, 2], logprobs=[-0.5, -1.0]), 1)])
    text = repr(shown)
    assert "<300 values>" in text and len(text) < 900
    packed = shown.attributes
    assert unpack_ids(base64.b64decode(packed[semconv.RESPONSE_IDS])) == [1, 2]
    assert unpack_floats(base64.b64decode(packed[semconv.LOGPROBS])) == [-0.5, -1.0]
    assert "<300" not in shown.model_dump_json()
    for n in range(8):
        (shown,) = merge_calls([], [(call(response_ids=[5] * n), 1)])
        assert f"<{n} values>" in repr(shown)


@pytest.mark.parametrize("response", [None, {}])
def test_a_call_without_answer_has_no_completion(response: dict[str, Any] | None) -> None:
    assert "gen_ai.completion.0.role" not in attributes(call(response=response))
