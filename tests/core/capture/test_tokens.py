from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given, strategies as st

from agentlightning.capture import tokens
from agentlightning.credit import verdicts

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(IDS, IDS)
def test_the_digest_is_the_one_of_credit(prompt: list[int], response: list[int]) -> None:
    assert tokens.tokens_digest(prompt, response) == verdicts.tokens_digest(prompt, response)


def test_the_digest_by_hand() -> None:
    by_hand = hashlib.sha256(struct.pack("<i3i2i", 3, 1, 2, 300_000, 7, 8)).hexdigest()
    assert tokens.tokens_digest([1, 2, 300_000], [7, 8]) == by_hand


def test_moving_the_border_changes_the_digest() -> None:
    assert tokens.tokens_digest([1, 2], [3]) != tokens.tokens_digest([1], [2, 3])


@given(IDS)
def test_ids_survive_packing(ids: list[int]) -> None:
    assert tokens.unpack_ids(tokens.pack_ids(ids)) == ids


@given(st.lists(st.floats(-100, 0, width=32), max_size=40))
def test_logprobs_survive_packing(logprobs: list[float]) -> None:
    assert tokens.unpack_logprobs(tokens.pack_logprobs(logprobs)) == logprobs


def test_ids_beyond_int32_are_refused() -> None:
    with pytest.raises(OverflowError):
        tokens.tokens_digest([2**31], [])
