from __future__ import annotations

from hypothesis import given, strategies as st

from agentlightning.capture.sdk import tokens

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(IDS)
def test_ids_survive_packing(ids: list[int]) -> None:
    assert tokens.unpack_ids(tokens.pack_ids(ids)) == ids


@given(st.lists(st.floats(-100, 0, width=32), max_size=40))
def test_logprobs_survive_packing(logprobs: list[float]) -> None:
    assert tokens.unpack_logprobs(tokens.pack_logprobs(logprobs)) == logprobs
