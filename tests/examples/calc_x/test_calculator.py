"""The tool: numbers out, errors as text."""

from __future__ import annotations

import pytest

from calc_x.calculator import calculate, calculate_text


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1+2", "3"),
        ("7/2", "3.5"),
        ("1/0", "error: division by zero"),
        ("", "error: the expression is empty"),
    ],
)
async def test_calculate(expression: str, result: str) -> None:
    assert await calculate(expression) == calculate_text(expression) == result


@pytest.mark.parametrize(
    "expression", ["os.system('x')", "1" * 9999, "(" * 9999, "9" * 200 + "**9", "\x00", "1+\ud800"]
)
async def test_nothing_a_model_writes_raises(expression: str) -> None:
    assert (await calculate(expression)).startswith("error: ")
