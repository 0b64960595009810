from __future__ import annotations

import json
import math

import numpy as np
import pytest
from contract.capturing import Recording
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from agentlightning.capture import COUNTS
from agentlightning.capture.records import convert, jsonable
from agentlightning.keys import Keys
from agentlightning.types import LLM, AttemptStatus, Reward


@pytest.fixture(autouse=True)
def clean() -> None:
    COUNTS.clear()


@pytest.mark.parametrize(
    ("value", "expected", "counted"),
    [
        ({"a": (1, 2.5, None, True)}, {"a": [1, 2.5, None, True]}, 0),
        ({1: "x"}, {"1": "x"}, 0),
        (math.inf, "inf", 1),
        (b"raw", "b'raw'", 1),
        ([{1}], ["{1}"], 1),
    ],
)
def test_jsonable(value: object, expected: object, counted: int) -> None:
    assert jsonable(value) == expected
    json.dumps(jsonable(value), allow_nan=False)
    assert COUNTS.snapshot().get("convert-stringified", 0) == 2 * counted


def test_models_become_their_fields() -> None:
    assert jsonable(Reward(value=1.0))["value"] == 1.0


def test_every_part_of_a_span_arrives() -> None:
    tracer = TracerProvider().get_tracer("t")
    linked = SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1))
    with tracer.start_as_current_span("parent") as parent:
        span = tracer.start_span("child", kind=trace.SpanKind.CLIENT, links=[Link(linked, {"why": "x"})])
        span.set_status(Status(StatusCode.ERROR, "broken"))
        span.record_exception(ValueError("no"))
        span.end()
    done = convert(span, Recording("c", None).context)  # type: ignore[arg-type]
    assert done.trace_id == f"{parent.get_span_context().trace_id:032x}" and len(done.trace_id) == 32
    assert done.parent_id == f"{parent.get_span_context().span_id:016x}" and len(done.span_id) == 16
    assert (done.kind, done.status, done.status_message) == ("client", "error", "broken")
    assert done.links == [
        {"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}", "attributes": {"why": "x"}}
    ]
    assert done.events[0]["attributes"]["exception.message"] == "no"
    assert 1e9 < done.start_time <= done.end_time < 1e10  # seconds since 1970
    assert done.resource["telemetry.sdk.language"] == "python"
    json.dumps(done.model_dump())


def test_keys_are_masked_wherever_they_stand() -> None:
    key = Keys(b"0123456789abcdef").mint("ro-1", "at-1")
    llm = LLM(endpoint="http://127.0.0.1:1/v1", model="m", api_key="sk-real")
    text = json.dumps(jsonable({"llm": llm, "header": f"Bearer {key}", "api_key": "sk-real"}))
    assert "sk-real" not in text and key not in text and "Bearer agl-***" in text


def test_subclasses_of_numbers_and_text_become_plain() -> None:
    class Name(str): ...

    values = [
        jsonable(v) for v in (np.float64(1.5), np.int64(2), np.array(3.0), AttemptStatus.FAILED, Name("n"))
    ]
    assert [type(v) for v in values] == [float, int, float, str, str]
