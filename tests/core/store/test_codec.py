"""Blobs: what goes in comes out, at float32 precision; what cannot go in is named."""

from __future__ import annotations

import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from marks import examples

from agentlightning.store import codec
from agentlightning.store.calls import CALL_FIELDS
from agentlightning.types import Call, Rollout, RolloutConfig, Span

INTS = st.one_of(st.integers(), st.integers(min_value=-(2**70), max_value=2**70))
JSON = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text() | st.just("half \ud83d"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
IDS = st.none() | st.lists(st.integers(min_value=0, max_value=2**31 - 1), max_size=50)


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@settings(max_examples=examples(150), deadline=None)
@given(JSON)
def test_values_come_back(value: Any) -> None:
    assert codec.unpack(codec.pack(value)) == value
    assert codec.unpack(codec.pack(value, small=1 << 20)) == value


@settings(max_examples=examples(60), deadline=None)
@given(
    IDS,
    IDS,
    st.none() | st.lists(st.floats(max_value=0, width=32)),
    st.dictionaries(st.text(max_size=5), JSON, max_size=3),
)
def test_calls_come_back(
    prompt: list[int] | None,
    response: list[int] | None,
    logprobs: list[float] | None,
    request: dict[str, Any],
) -> None:
    call = Call(
        call_id="c",
        rollout_id="r",
        attempt_id="a",
        prompt_ids=prompt,
        response_ids=response,
        logprobs=logprobs,
        request=request,
        tags={"agent": "x"},
        policy_version=3,
    )
    body = codec.unpack(codec.pack(codec.call_body(call)), codec.CallBody)
    again = codec.call_from_body(body, **{name: getattr(call, name) for name in CALL_FIELDS})
    assert again == call
    assert again.prompt_ids is None or all(type(i) is int for i in again.prompt_ids)


def test_logprobs_have_float32_precision() -> None:
    assert codec.unpack_floats(codec.pack_floats([-0.1])) == [float32(-0.1)]


def test_spans_come_back() -> None:
    span = Span(
        rollout_id="r", attempt_id="a", name="n", attributes={"x": float("inf")}, events=[{"name": "e"}]
    )
    columns = {name: getattr(span, name) for name in ("rollout_id", "attempt_id", "name", "sequence_id")}
    assert codec.unpack_span(codec.pack_span(span), **columns) == span


@pytest.mark.parametrize("ids", [[2**31], [-(2**40)], ["1"], [1.5]])
def test_ids_that_do_not_fit_are_named(ids: list[Any]) -> None:
    with pytest.raises(ValueError, match="token ids must be integers that fit 32 bits"):
        codec.pack_ids(ids)


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(TypeError, match=r"input of rollout ro-1.*complex"):
        codec.pack_input(Rollout(rollout_id="ro-1", input={"x": 1j}))
    with pytest.raises(ValueError, match="not a blob"):
        codec.unpack(b"\x09garbage")


def test_defaults_take_no_space() -> None:
    assert codec.pack_config(RolloutConfig()) is None and codec.pack_optional({}) is None


def test_arrays_are_little_endian_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codec.pack_ids([1]) == b"\x01\x00\x00\x00"
    assert codec.pack_floats([1.0]) == b"\x00\x00\x80\x3f"
    monkeypatch.setattr(sys, "byteorder", "big")  # arrays of this machine are swapped from here on
    assert codec.pack_ids([1]) == b"\x01\x00\x00\x00"  # made without an array
    assert codec.unpack_ids(b"\x00\x00\x00\x01") == [1] and codec.pack_floats([1.0]) == b"\x3f\x80\x00\x00"


def test_threads_do_not_share_a_compressor() -> None:
    values = [[f"{i}-{j}" * 50 for j in range(200)] for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda v: codec.unpack(codec.pack(v)), values)) == values
