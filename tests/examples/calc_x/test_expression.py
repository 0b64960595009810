"""The restricted evaluator: right values, bounded work, plain errors, and nothing but arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from calc_x.calculator import calculate_text
from calc_x.expression import MAX_LENGTH, ExpressionError, evaluate, render, to_float
from calc_x.grading import grade

VALUES = {
    "1+2*3": 7,
    "(1+2)*3": 9,
    "2-3-4": -5,
    "100/5/2": 10,
    "-2**2": -4,
    "(-2)**2": 4,
    "2**-1": Fraction(1, 2),
    "2**3**2": 512,
    "2^3": 8,
    "--3": 3,
    "3 x 4": 12,
    "3×4÷2−1": 5,
    "1/3": Fraction(1, 3),
    "2(1/3)": Fraction(7, 3),
    "2 1/3": Fraction(7, 3),
    "5(1/2)*2": 11,
    "75%": Fraction(3, 4),
    "200*15%": 30,
    "1,234.5+1": Fraction(2471, 2),
    "1e3": 1000,
    ".5": Fraction(1, 2),
    "0.1+0.2": Fraction(3, 10),
    "0**0": 1,
}

ERRORS = {
    "": "empty",
    "  ": "empty",
    "3+": "ends too early",
    "(1": "ends too early|not closed",
    "(1 2": "not closed",
    "1)": "unexpected",
    "1 2": "unexpected",
    "1,23": "unexpected",
    "10%3": "unexpected",
    "2(3)": "unexpected",
    "*3": "expected a number",
    "1/0": "division by zero",
    "1/(2-2)": "division by zero",
    "2 1/0": "division by zero",
    "0**-1": "division by zero",
    "9**9999": "exponent",
    "1e9999": "exponent",
    "1e" + "9" * 50: "exponent",
    "99**200*99**200": "too large",
    "(9**99)**(1/2)*(9**99)**99": "too large",
    "(-8)**(1/3)": "negative",
    "(" * 60 + "1" + ")" * 60: "nested",
    "-" * 60 + "1": "nested",
    "2**" * 60 + "1": "nested|large|exponent",
    "1+" * MAX_LENGTH + "1": "characters long",
    "__import__('os').system('true')": "unexpected",
    "abs(3)": "unexpected",
    "1 if 1 else 2": "unexpected",
    "0x10": "unexpected|expected",
    "1_000": "unexpected",
    "१+२": "unexpected",
    "nan": "unexpected",
    "inf": "unexpected",
}


@pytest.mark.parametrize("text", VALUES)
def test_value(text: str) -> None:
    assert evaluate(text) == VALUES[text]


@pytest.mark.parametrize("text", [text for text in ERRORS if text != "0x10"])
def test_error_says_what_is_wrong(text: str) -> None:
    with pytest.raises(ExpressionError, match=ERRORS[text]):
        evaluate(text)


def test_fractional_power_is_a_float() -> None:
    assert evaluate("2**0.5") == pytest.approx(2**0.5)
    assert evaluate("4**(1/2)*3") == 6.0


def test_render_is_short_and_exact_for_whole_numbers() -> None:
    assert render(evaluate("12*13")) == "156"
    assert render(evaluate("1/3")) == "0.3333333333"
    assert render(evaluate("6/4")) == "1.5"
    assert render(evaluate("4**0.5")) == "2"
    assert render(evaluate("1793815*1793815*60")) == str(1793815 * 1793815 * 60)


@pytest.mark.parametrize("operation", ["+", "-", "*", "/"])
def test_a_fraction_beyond_floats_that_meets_a_float_is_an_error(operation: str) -> None:
    text = f"10^200*10^200{operation}2^0.5"
    with pytest.raises(ExpressionError, match="too large"):
        evaluate(text)
    assert calculate_text(text).startswith("error")
    assert grade(f"### ANSWER: {text} ###", "5") == 0.0


def test_a_number_beyond_floats_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="too large"):
        to_float(Fraction(10) ** 400)


@given(st.integers(-999, 999), st.integers(-999, 999), st.integers(1, 999), st.sampled_from("+-*/"))
def test_agrees_with_exact_arithmetic(a: int, b: int, c: int, op: str) -> None:
    expected = {"+": Fraction(a + b), "-": Fraction(a - b), "*": Fraction(a * b), "/": Fraction(a, b or 1)}[
        op
    ]
    assert evaluate(f"({a}{op}({b or 1 if op == '/' else b}))*{c}") == expected * c


@given(st.text(alphabet="0123456789+-*/^%(). ,ex", max_size=80))
def test_any_text_gives_a_value_or_an_expression_error(text: str) -> None:
    try:
        value = evaluate(text)
    except ExpressionError:
        return
    assert isinstance(value, Fraction | float)
