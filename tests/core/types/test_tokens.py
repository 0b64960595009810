"""Packed ids and their digest."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given, strategies as st

from agentlightning.types.tokens import WIDTH, pack, tokens_digest

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def test_the_digest_by_hand() -> None:
    by_hand = hashlib.sha256(struct.pack("<i3i2i", 3, 1, 2, 300_000, 7, 8)).hexdigest()
    assert tokens_digest([1, 2, 300_000], [7, 8]) == by_hand


def test_moving_the_border_changes_the_digest() -> None:
    assert tokens_digest([1, 2], [3]) != tokens_digest([1], [2, 3])


@given(IDS, IDS)
def test_prefixes_survive_packing(a: list[int], b: list[int]) -> None:
    assert len(pack(a)) == WIDTH * len(a)
    assert pack(a + b).startswith(pack(a))
    assert (pack(a) == pack(b)) == (a == b)


@pytest.mark.parametrize("bad", [[2**31], ["1"], [1.5]])
def test_ids_that_are_none_are_refused(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="must be integers that fit 32 bits"):
        tokens_digest(bad, [])
