from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentlightning.types.arrays import Flags, Ints, pack_int64, unwrap_scalar
from agentlightning.types.tokens import TokenIds


class Scalar:
    """As numpy's and torch's look."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def item(self) -> float:
        return 0.5


@pytest.mark.parametrize("value", [1, 0.5, "x", None, [1], {"item": 1}])
def test_other_values_are_as_they_are(value: Any) -> None:
    assert unwrap_scalar(value) is value


def test_a_scalar_is_its_number_and_an_array_is_not() -> None:
    array = Scalar((1,))
    assert unwrap_scalar(Scalar(())) == 0.5
    assert unwrap_scalar(array) is array and unwrap_scalar(array, one_element=True) == 0.5


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40))
def test_arrays_widen_to_the_same_bytes_as_lists(values: list[int]) -> None:
    wanted = struct.pack(f"<{len(values)}q", *values)
    assert pack_int64(values) == pack_int64(Ints(values)) == wanted
    if all(value >= 0 for value in values):
        assert pack_int64(TokenIds(values)) == wanted


@pytest.mark.parametrize("values", [[], [0, 1, 1], [127, -1]])
def test_flags_widen(values: list[int]) -> None:
    assert pack_int64(Flags(values)) == pack_int64(values)
