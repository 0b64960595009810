"""Which reward belongs to which call, and which calls are left out."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from agentlightning import (
    LlmProxyTraceToTriplet,
    Span,
    TracerTraceToTriplet,
    TraceToMessages,
    UsageError,
    semconv,
)
from agentlightning.store import codec


def span(name: str, at: float, parent: str | None = None, **fields: Any) -> Span:
    attributes = fields.pop("attributes", {})
    return Span(
        rollout_id="ro-1",
        attempt_id="at-1",
        name=name,
        span_id=fields.pop("span_id", f"{name}@{at}"),
        parent_id=parent,
        start_time=at,
        end_time=fields.pop("end", at + 0.5),
        sequence_id=fields.pop("sequence", int(at)),
        attributes=attributes,
    )


def call(at: float, ids: list[int] | None = None, parent: str | None = None, **attributes: Any) -> Span:
    packed = {} if ids is None else {semconv.PROMPT_IDS: pack([1]), semconv.RESPONSE_IDS: pack(ids)}
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return span(semconv.CALL_SPAN, at, parent, attributes={**packed, **named}, span_id=f"call{at:g}")


def pack(ids: list[int]) -> str:
    return base64.b64encode(codec.pack_ids(ids) or b"").decode()


def reward(value: float, at: float, parent: str | None = None, **attributes: Any) -> Span:
    return span(semconv.REWARD_SPAN, at, parent, attributes={semconv.REWARD_VALUE: value, **attributes})


def rewards(converter: TracerTraceToTriplet, *spans: Span) -> list[float | None]:
    return [t.reward for t in converter.adapt(spans)]


def test_a_reward_goes_to_the_last_call_before_it_that_has_none() -> None:
    spans = call(1, [1]), call(2, [2]), reward(0.1, 3), reward(0.2, 4), call(5, [3])
    assert rewards(TracerTraceToTriplet(), *spans) == [0.2, 0.1, None]


def test_a_call_that_had_not_ended_does_not_get_it() -> None:
    slow = call(2, [2])
    slow.end_time = 9
    assert rewards(TracerTraceToTriplet(), call(1, [1]), slow, reward(0.1, 3)) == [0.1, None]


def test_of_rewards_of_one_call_the_one_that_the_store_took_last_counts() -> None:
    """Whatever their clocks say; and what the agent returned counts more than what it emitted."""
    named = {semconv.REWARD_CALL: "c1"}
    one = call(1, [1], agl__call_id="c1")
    in_2096, later = reward(9.0, 4e9, **named), reward(0.5, 3, **named)
    in_2096.sequence_id, later.sequence_id = 2, 3
    assert rewards(TracerTraceToTriplet(), one, later, in_2096) == [0.5]
    in_2096.returned = True
    assert rewards(TracerTraceToTriplet(), one, later, in_2096) == [9.0]


def test_siblings_share_a_parent() -> None:
    spans = call(1, [1], "a"), call(2, [2], "b"), reward(0.1, 3, "a")
    assert rewards(TracerTraceToTriplet(reward_match="FIRST_SIBLING"), *spans) == [0.1, None]


def test_a_reward_that_names_its_call_goes_there() -> None:
    spans = (
        call(1, [1], agl__call_id="c1"),
        call(2, [2], gen_ai__response__id="r2"),
        call(3, [3]),
        reward(0.1, 4, **{semconv.REWARD_CALL: "c1"}),
        reward(0.2, 5, **{semconv.RESPONSE_ID: "r2"}),
        reward(0.3, 6, **{semconv.REWARD_SPAN_ID: "call3"}),
        reward(9.0, 7, **{semconv.REWARD_CALL: "gone"}),
    )
    assert rewards(TracerTraceToTriplet(), *spans) == [0.1, 0.2, 0.3]


def test_a_reward_of_an_agent_goes_to_its_calls() -> None:
    spans = call(1, [1], agl__tag__agent="a"), call(2, [2]), reward(1.0, 3, **{semconv.REWARD_AGENT: "a"})
    assert rewards(TracerTraceToTriplet(), *spans) == [1.0, None]


def test_the_agent_may_be_named_above() -> None:
    above = span("invoke_agent", 0, attributes={semconv.AGENT_NAME: "writer"}, span_id="w")
    spans = above, call(1, [1], "w"), call(2, [2])
    (found,) = TracerTraceToTriplet(agent_match="^writ").adapt(spans)
    assert found.response_ids == [1] and found.tags == {"agent": "writer"}


def test_one_answer_is_one_triplet_however_often_it_was_seen() -> None:
    twice = call(1, [1], gen_ai__response__id="r"), call(2, [1], gen_ai__response__id="r")
    other = call(3, [2], gen_ai__response__id="r", agl__choice=1)
    assert len(TracerTraceToTriplet().adapt([*twice, other])) == 2
    assert len(TracerTraceToTriplet(dedup=False).adapt([*twice, other])) == 3


def test_a_call_without_ids_is_empty_or_left_out() -> None:
    (empty,) = TracerTraceToTriplet().adapt([call(1)])
    assert empty.prompt_ids == empty.response_ids == [] and empty.logprobs is None
    assert TracerTraceToTriplet(skip_empty=True).adapt([call(1)]) == []


def test_parents_in_a_circle_end() -> None:
    one = span("x", 0, "y", span_id="x")
    two = span("y", 0, "x", span_id="y")
    assert len(TracerTraceToTriplet(agent_match="").adapt([one, two, call(1, [1], "x")])) == 1


def test_at_the_gateway_arrival_decides_and_clocks_do_not() -> None:
    spans = call(5, [1]), reward(0.1, 2), call(1, [2])
    for sequence, one in enumerate(spans):
        one.sequence_id = sequence
    found = LlmProxyTraceToTriplet().adapt(spans)
    assert [(t.response_ids, t.reward) for t in found] == [([1], 0.1), ([2], None)]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("agent_match", "(", "agent_match: '\\('"), ("reward_match", "best", "use one of first_occurrence")],
)
def test_what_cannot_be_read_is_said(field: str, value: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TracerTraceToTriplet(**{field: value})


def test_tools_and_tool_calls_become_messages() -> None:
    one = call(
        1,
        gen_ai__prompt__0__role="user",
        gen_ai__prompt__0__content="?",
        gen_ai__completion__0__role="assistant",
        gen_ai__completion__0__finish_reason="tool_calls",
        **{
            "gen_ai.completion.0.tool_calls.0.id": "c",
            "gen_ai.completion.0.tool_calls.0.name": "f",
            "gen_ai.completion.0.tool_calls.0.arguments": "{}",
            semconv.TOOL_DEFINITIONS: '[{"type": "function"}]',
        },
    )
    (found,) = TraceToMessages().adapt([one])
    function = {"name": "f", "arguments": "{}"}
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    assert found == {"messages": [{"role": "user", "content": "?"}, said], "tools": [{"type": "function"}]}


def test_another_instrumentations_span_of_a_call_is_no_second_call() -> None:
    """AgentOps makes a span of the same name around the SDK, with the response's id and without token ids."""
    around = span(semconv.CALL_SPAN, 1, span_id="theirs", attributes={semconv.RESPONSE_ID: "r-1"}, end=3)
    ours = call(1.1, [2], "theirs", agl__choice=0, agl__layer="wire", gen_ai__response__id="r-1")
    [triplet] = TracerTraceToTriplet().adapt([around, ours, reward(1.0, 4)])
    assert (triplet.response_ids, triplet.reward) == ([2], 1.0)
    nameless = span(semconv.CALL_SPAN, 1, span_id="theirs", end=3)
    [triplet] = TracerTraceToTriplet().adapt([nameless, ours, reward(1.0, 4)])
    assert triplet.response_ids == [2]
    choices = [call(1.1 + n / 10, [n], "theirs", agl__choice=n, gen_ai__response__id="r-1") for n in (0, 1)]
    assert [t.response_ids for t in TracerTraceToTriplet().adapt([around, *choices])] == [[0], [1]]
    seen = span(semconv.CALL_SPAN, 1, attributes={**choices[1].attributes, semconv.LAYER: "wire"})
    del seen.attributes[semconv.RESPONSE_IDS]  # the wire layer's of the second choice knows no ids
    assert [t.response_ids for t in TracerTraceToTriplet().adapt([seen, *choices])] == [[1], [0]]
    alone = TracerTraceToTriplet().adapt([around])
    assert [t.metadata["response_id"] for t in alone] == ["r-1"]  # where only they saw it, it is a call


ODD = {
    "agl.choice": "abc",
    "agl.response_token_ids": "no base64!",
    "agl.prompt_token_ids": 5,
    "agl.logprobs": "AAA=",
    "gen_ai.response.id": ["r"],
    "gen_ai.agent.name": {"a": 1},
    "gen_ai.input.messages": "{",
    "gen_ai.output.messages": '[7, {"parts": [7, {"type": "text"}]}]',
    "gen_ai.tool.definitions": 5,
    "gen_ai.prompt." + "9" * 5000 + ".content": "x",
    "agl.reward.value": "high",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_attributes_cost_their_own_span_at_most(name: str) -> None:
    odd = span(semconv.CALL_SPAN, 1, attributes={name: ODD[name]}, span_id="odd")
    spans = [odd, call(2, [2]), span(semconv.REWARD_SPAN, 3, attributes={name: ODD[name]}), reward(1.0, 4)]
    for converter in (TracerTraceToTriplet(skip_empty=True), LlmProxyTraceToTriplet(skip_empty=True)):
        assert [(t.response_ids, t.reward) for t in converter.adapt(spans)] == [([2], 1.0)]
    assert len(TraceToMessages().adapt(spans)) == 2


def test_a_call_that_agentops_saw_too_is_one_conversation() -> None:
    around = span(semconv.CALL_SPAN, 1, span_id="theirs", attributes={semconv.RESPONSE_ID: "r-1"}, end=3)
    ours = call(1.1, [2], "theirs", agl__layer="wire", gen_ai__response__id="r-1")
    assert len(TraceToMessages().adapt([around, ours])) == 1
