"""Packed ids and their digest."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given, strategies as st

from agentlightning.types import Call
from agentlightning.types.tokens import WIDTH, PrefixDigests, neighbours, pack, shared_buffer, tokens_digest

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


@given(IDS, IDS)
def test_neighbours_share_one_buffer(a: list[int], b: list[int]) -> None:
    prompt, response = neighbours(a, b)
    assert prompt == a and response == b
    buffer, own, whole = shared_buffer(prompt, response)
    assert (bytes(buffer.data), own, whole) == (pack(a + b), WIDTH * len(a), WIDTH * len(a + b))
    assert shared_buffer(prompt, response)[0] is buffer  # not a copy


def test_a_call_holds_the_ids_that_it_is_given_as_lists_in_one_buffer() -> None:
    call = Call(call_id="c", rollout_id="r", attempt_id="a", prompt_ids=[1, 2], response_ids=[3])  # type: ignore[arg-type]
    assert call.prompt_ids == [1, 2] and call.response_ids == [3]
    assert call.prompt_ids is not None and call.response_ids is not None
    assert call.prompt_ids.view().obj is call.response_ids.view().obj


def test_buffers_do_not_share_the_hashes_of_their_bytes() -> None:
    one, two = PrefixDigests(b"abcd"), PrefixDigests(b"efgh")
    assert one.digest(4) == hashlib.blake2b(b"abcd", digest_size=16).digest()
    assert two.digest(4) == hashlib.blake2b(b"efgh", digest_size=16).digest()
    assert list(two.digests([0, 2, 4])) == [
        hashlib.blake2b(part, digest_size=16).digest() for part in (b"", b"ef", b"efgh")
    ]
    assert one.digest(0) == hashlib.blake2b(digest_size=16).digest()
