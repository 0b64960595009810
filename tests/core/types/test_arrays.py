from __future__ import annotations

from typing import Any

import pytest

from agentlightning.types.arrays import unwrap_scalar


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
