"""Spans of a program as OTLP: the store decodes the recorded spans."""

from __future__ import annotations

from typing import Any

from agl_programs.inside.otlp import export_request
from hypothesis import given, strategies as st

from agentlightning.types import Span
from agl_cluster.store import otlp

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = texts.map("k{}".format)  # keys that hold secrets are masked
values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
attributes = st.dictionaries(names, values, max_size=4)
ids = st.binary(min_size=8, max_size=8).map(bytes.hex)
spans = st.builds(
    Span,
    rollout_id=st.just(""),
    attempt_id=st.just(""),
    name=texts,
    trace_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
    span_id=ids,
    parent_id=st.none() | ids,
    kind=st.sampled_from(["internal", "server", "client", "producer", "consumer"]),
    status=st.sampled_from(["unset", "ok", "error"]),
    status_message=st.none() | texts.filter(bool),
    attributes=attributes,
    resource=attributes,
    events=st.lists(
        st.fixed_dictionaries({"name": texts, "time": st.just(2.5), "attributes": attributes}), max_size=2
    ),
    links=st.lists(
        st.fixed_dictionaries({"trace_id": st.just("ef" * 16), "span_id": ids, "attributes": attributes}),
        max_size=2,
    ),
    start_time=st.just(1.25),
    end_time=st.just(1.5),
)


@given(st.lists(spans, max_size=4))
def test_spans_come_back_as_they_were(given_spans: list[Span]) -> None:
    body = b"".join(export_request([span]) for span in given_spans)  # requests merge when they are joined
    for encoded in (body, export_request(given_spans)):
        request, damaged = otlp.decode(encoded, otlp.PROTOBUF)
        assert list(otlp.spans(request)) == given_spans and damaged == 0


def test_an_integer_of_more_than_64_bits_becomes_text() -> None:
    span = Span(rollout_id="", attempt_id="", name="s", attributes={"large": 1 << 70})
    (found,) = otlp.spans(otlp.decode(export_request([span]), otlp.PROTOBUF)[0])
    assert found.attributes == {"large": str(1 << 70)}
