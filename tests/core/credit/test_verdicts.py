"""Verdicts: what counts as confirmed, and that every contradiction is found."""

from __future__ import annotations

import hashlib
import struct

import pytest
from core.credit.builders import PATIENT, make_call, make_record, make_wire
from hypothesis import given, strategies as st

from agentlightning import semconv
from agentlightning.credit.verdicts import (
    engine_refusal,
    refusal_of,
    refused,
    unrecorded,
    verdict,
    verdicts,
)
from agentlightning.types.tokens import common_prefix, pack, tokens_digest

IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=12)


def seen_call(**fields):
    fields = {"response_id": "resp", "span_id": "s", "trace_id": "t", "tags": {"agent": "A"}, **fields}
    return make_call("c", [1, 2, 3], [4, 5], **fields)


def test_the_digest_is_sha256_of_count_and_int32_ids():
    expected = hashlib.sha256(struct.pack("<i", 2) + struct.pack("<3i", 7, -1, 9)).hexdigest()
    assert tokens_digest([7, -1], [9]) == expected


@PATIENT
@given(IDS, IDS, IDS, IDS)
def test_equal_digests_mean_equal_ids(a, b, c, d):
    assert (tokens_digest(a, b) == tokens_digest(c, d)) == ((a, b) == (c, d))


def test_the_border_between_prompt_and_response_counts():
    assert tokens_digest([1, 2], [3]) != tokens_digest([1], [2, 3])


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], [1.5], ["1"]])
def test_ids_that_are_no_int32_are_refused(ids):
    with pytest.raises(ValueError, match="32 bits"):
        pack(ids)


@PATIENT
@given(IDS, IDS)
def test_common_prefix(a, b):
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(pack(a), pack(b)) == expected


def test_exact():
    call = seen_call()
    assert verdict(call, [make_wire(call)]) == ("exact", "")


def test_exact_by_caller_span_where_no_response_id_is_known():
    call = seen_call(response_id=None)
    assert verdict(call, [make_wire(call)]).kind == "exact"


def test_a_span_of_another_response_choice_or_trace_does_not_confirm():
    call = seen_call()
    for other in [
        make_wire(call, **{semconv.RESPONSE_ID: "another"}),
        make_wire(call, **{semconv.CHOICE: 1}),
        make_wire(seen_call(response_id=None, trace_id="elsewhere")),
    ]:
        assert verdict(call, [other]) == ("gateway-only", "no wire span")


def test_gateway_only_says_why():
    call = seen_call()
    assert verdict(call, []).reason == "no wire span"
    assert "no digest" in verdict(call, [make_wire(call, **{semconv.TOKENS_DIGEST: None})]).reason
    assert "usage" in verdict(seen_call(prompt_tokens=None), [make_wire(call)]).reason
    assert "logprobs" in verdict(seen_call(logprobs=None), [make_wire(call)]).reason


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_tokens": 4}, "3 prompt ids, but usage says 4"),
        ({"completion_tokens": 1}, "2 response ids, but usage says 1"),
        ({"logprobs": [-1.0]}, "2 response ids, but 1 logprobs"),
    ],
)
def test_counts_that_disagree_are_a_mismatch_with_or_without_a_wire_span(fields, words):
    call = seen_call(**fields)
    assert verdict(call, []) == ("mismatch", words)
    assert verdict(call, [make_wire(call)]) == ("mismatch", words)


def test_digests_and_tags_that_disagree_are_a_mismatch():
    call = seen_call()
    assert verdict(call, [make_wire(call, **{semconv.TOKENS_DIGEST: "0"})]).kind == "mismatch"
    assert "agent" in verdict(call, [make_wire(call, **{"agl.tag.agent": "B"})]).reason
    assert "node" in verdict(call, [make_wire(call, **{"agl.tag.node": "n"})]).reason
    assert (
        verdict(call, [make_wire(call), make_wire(call, **{semconv.TOKENS_DIGEST: "0"})]).kind == "mismatch"
    )


def test_an_answer_that_was_not_read_to_its_end_is_cancelled_whatever_the_gateway_sent():
    call, read = seen_call(), tokens_digest([1, 2, 3], [4])
    for seen in ({semconv.TOKENS_DIGEST: read}, {semconv.TOKENS_DIGEST: None}, {}):
        assert verdict(call, [make_wire(call, **seen, **{semconv.PARTIAL: True})]).kind == "cancelled"
    failed = make_wire(call, **{semconv.TOKENS_DIGEST: read})
    failed.status = "error"  # the agent's own timeout, say
    assert verdict(call, [failed]).kind == "cancelled"


def test_an_error_over_an_answer_that_was_read_cancels_nothing():
    call = seen_call()
    unparsed = make_wire(call)
    unparsed.status = "error"
    assert verdict(call, [unparsed]).kind == "exact"


def test_a_choice_that_was_not_reached_is_cancelled_with_the_one_that_was_begun():
    first, second = seen_call(), seen_call(choice=1)
    wire = [make_wire(first, **{semconv.PARTIAL: True})]
    assert verdict(second, wire, [first, second]).kind == "cancelled"


def test_the_gateway_may_know_more_tags():
    call = seen_call(tags={"agent": "A", "phase": "night"})
    assert verdict(call, [make_wire(call, **{"agl.tag.phase": None})]).kind == "exact"


def test_without_ids():
    call = make_call("c", None, None, response_id="resp", error="engine said 500")
    assert verdict(call, []) == ("no-ids", "engine said 500")
    assert verdict(call, [make_wire(seen_call())]).kind == "wire-only"


def test_usage_of_parallel_choices_is_their_sum():
    calls = [
        make_call(f"c{i}", [1], [2] * n, choice=i, completion_tokens=5, response_id="x", span_id="s")
        for i, n in enumerate((2, 3))
    ]
    found = verdicts(make_record(calls=calls, wire=[make_wire(c) for c in calls]))
    assert {v.kind for v in found.values()} == {"exact"}
    assert verdict(calls[0], [], calls[:1]).kind == "mismatch"


def test_a_choice_without_ids_leaves_usage_unchecked():
    calls = [
        make_call("c0", [1], [2, 2], completion_tokens=5),
        make_call("c1", None, None, choice=1, completion_tokens=5),
    ]
    assert "another choice" in verdicts(make_record(calls=calls))["c0"].reason


def test_verdicts_of_a_record_equal_those_one_by_one():
    calls = [seen_call(response_id=f"x{i}", span_id=f"s{i}", sequence=i) for i in range(4)]
    for i, call in enumerate(calls):
        call.call_id = f"c{i}"
    calls[1].response_id = None
    wire = [make_wire(c) for c in calls[:3]]
    found = verdicts(make_record(calls=calls, wire=wire))
    assert found == {c.call_id: verdict(c, wire) for c in calls}
    assert [found[f"c{i}"].kind for i in range(4)] == ["exact", "exact", "exact", "gateway-only"]


def test_wire_spans_that_no_call_explains():
    call = seen_call()
    stray = make_wire(seen_call(response_id="elsewhere", span_id="other"))
    assert unrecorded(make_record(calls=[call], wire=[make_wire(call), stray])) == [stray]


def test_a_call_that_the_gateway_refused_did_not_bypass_it():
    call = seen_call()
    stray = make_wire(seen_call(response_id="elsewhere", span_id="other"))
    no = make_wire(make_call("n", None, None, span_id="no"), **{semconv.REFUSED: "unsupported-field"})
    record = make_record(calls=[call], wire=[make_wire(call), stray, no])
    assert unrecorded(record) == [stray]
    assert [refusal_of(span) for span in refused(record)] == ["unsupported-field"]


def test_a_recorded_call_that_the_engine_refused_is_no_refusal_of_the_gateway():
    call = make_call("c", None, None, span_id="s", status="error", error="HTTP 400 bad_tool: no such tool")
    record = make_record(calls=[call], wire=[make_wire(call, **{semconv.REFUSED: "bad_tool"})])
    assert refused(record) == [] and engine_refusal(call) == "HTTP 400 bad_tool"
    assert engine_refusal(make_call("c", None, None, status="error", error="HTTP 500 x: y")) is None
    assert engine_refusal(seen_call()) is None
