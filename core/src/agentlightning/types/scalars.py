"""Scalars of array libraries, which core does not import."""

from __future__ import annotations

from typing import Any


def unwrap_scalar(value: Any, *, one_element: bool = False) -> Any:
    """The Python number in a scalar of numpy, torch and the like (an array without dimensions); other values
    as they are. ``one_element``: in an array with one element, too. Objects of agents may raise here.
    """
    if callable(item := getattr(value, "item", None)) and (
        one_element or getattr(value, "shape", None) == ()
    ):
        return item()
    return value
