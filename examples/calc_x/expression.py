"""A small arithmetic evaluator for text written by a model: no names, no calls, no ``eval``, bounded work.

Grammar (lowest to highest): ``+ -``, then ``* /`` (also ``x × · ÷``), unary sign, ``**`` (also ``^``,
right-associative), postfix ``%`` (percent). Atoms are numbers (decimals, ``1,000`` separators, ``1e6``),
mixed numbers (``2(1/3)`` or ``2 1/3``) and parentheses. Arithmetic is exact on fractions; only a fractional
power makes a float. Length, nesting, exponents and the size of every intermediate number are limited, so
evaluation takes microseconds whatever the text.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction

Number = Fraction | float

MAX_LENGTH = 256
"""Characters of one expression."""
MAX_DEPTH = 32
"""Nested parentheses, signs and powers."""
MAX_EXPONENT = 256
"""Absolute value of an exponent, in ``2 ** 10`` and in ``1e10``."""
MAX_BITS = 2048
"""Bits of a numerator or denominator."""

_NUMBER = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(rf"\s*(?:({_NUMBER})|(\*\*|[-+*/^%()x×·÷−–]))")
_SAME = {"^": "**", "x": "*", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"}


class ExpressionError(ValueError):
    """The text is not an arithmetic expression within the limits; the message says what and where."""


def evaluate(text: str) -> Number:
    """The value of an expression: an exact ``Fraction``, or a float after a fractional power."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expression is {len(text)} characters long, at most {MAX_LENGTH} are allowed")
    parser = _Parser(_tokens(text))
    value = parser.sum(0)
    if parser.token is not None:
        raise ExpressionError(f"unexpected {parser.token!r} in {text.strip()!r}")
    return value


def render(value: Number) -> str:
    """A value as short text: all digits of a whole number, else ten significant digits."""
    if isinstance(value, Fraction) and value.denominator == 1:
        return str(value.numerator)
    return f"{to_float(value):.10g}"


def to_float(value: Number) -> float:
    """The nearest float; an ``ExpressionError`` where there is none."""
    try:
        return float(value)
    except OverflowError:
        raise ExpressionError("the number is too large") from None


def _tokens(text: str) -> list[str]:
    """Numbers and operators, each operator in its plain spelling."""
    text = text.strip()
    tokens: list[str] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ExpressionError(
                f"unexpected {text[place:].lstrip()[:1]!r} at character {place} of {text!r}"
            )
        tokens.append(match[1] or _SAME.get(match[2], match[2]))
        place = match.end()
    return tokens


class _Parser:
    """Recursive descent over a token list; each method reads one level of the grammar."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def token(self) -> str | None:
        """The token to be read, or None at the end."""
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def sum(self, depth: int) -> Number:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"expression is nested deeper than {MAX_DEPTH} levels")
        value = self._product(depth)
        while self.token in ("+", "-"):
            if self._take() == "+":
                value = _apply(operator.add, value, self._product(depth))
            else:
                value = _apply(operator.sub, value, self._product(depth))
        return value

    def _product(self, depth: int) -> Number:
        value = self._signed(depth)
        while self.token in ("*", "/"):
            if self._take() == "*":
                value = _apply(operator.mul, value, self._signed(depth))
                continue
            divisor = self._signed(depth)
            if divisor == 0:
                raise ExpressionError("division by zero")
            value = _apply(operator.truediv, value, divisor)
        return value

    def _signed(self, depth: int) -> Number:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"expression is nested deeper than {MAX_DEPTH} levels")
        if self.token in ("+", "-"):
            return self._signed(depth + 1) if self._take() == "+" else -self._signed(depth + 1)
        base = self._percent(depth)
        if self.token == "**":
            self._take()
            return _power(base, self._signed(depth + 1))
        return base

    def _percent(self, depth: int) -> Number:
        value = self._atom(depth)
        while self.token == "%":
            self._take()
            value = _apply(operator.truediv, value, Fraction(100))
        return value

    def _atom(self, depth: int) -> Number:
        token = self._take()
        if token == "(":
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ExpressionError("a parenthesis is not closed")
            return value
        if token[0] in "0123456789.":
            return _bounded(_number(token) + self._fraction_part(token))
        raise ExpressionError(f"expected a number, found {token!r}")

    def _fraction_part(self, whole: str) -> Fraction:
        """The ``1/3`` of a mixed number ``2(1/3)`` or ``2 1/3``, consumed; zero when there is none."""
        ahead = self._tokens[self._next : self._next + 5]
        if not whole.isdigit() or not ahead:
            return Fraction(0)
        bare = ahead[1:4] if ahead[0] == "(" and ahead[4:] == [")"] else ahead[:3]
        if len(bare) != 3 or bare[1] != "/" or not bare[0].isdigit() or not bare[2].isdigit():
            return Fraction(0)
        if int(bare[2]) == 0:
            raise ExpressionError("division by zero")
        self._next += 5 if ahead[0] == "(" else 3
        return Fraction(int(bare[0]), int(bare[2]))

    def _take(self) -> str:
        token = self.token
        if token is None:
            raise ExpressionError(
                "the expression ends too early" if self._tokens else "the expression is empty"
            )
        self._next += 1
        return token


def _number(token: str) -> Fraction:
    digits, _, exponent = token.replace(",", "").lower().partition("e")
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT):
        raise ExpressionError(f"exponent of {token} is beyond {MAX_EXPONENT}")
    return Fraction(digits) * Fraction(10) ** int(exponent or 0)


def _power(base: Number, exponent: Number) -> Number:
    if not -MAX_EXPONENT <= exponent <= MAX_EXPONENT:
        raise ExpressionError(f"exponent is beyond {MAX_EXPONENT}")
    if base == 0 and exponent < 0:
        raise ExpressionError("division by zero")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent) > MAX_BITS:
            raise ExpressionError("the number is too large")
        return base**exponent.numerator
    if base < 0:
        raise ExpressionError("fractional power of a negative number")
    try:
        return _bounded(to_float(base) ** to_float(exponent))
    except OverflowError:
        raise ExpressionError("the number is too large") from None


def _apply(operation: Callable[[Number, Number], Number], a: Number, b: Number) -> Number:
    """The operation, bounded. A fraction beyond the floats that meets a float is too large."""
    try:
        return _bounded(operation(a, b))
    except OverflowError:
        raise ExpressionError("the number is too large") from None


def _bounded(value: Number) -> Number:
    """The value itself when it is finite and small enough to go on with."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExpressionError("the number is too large")
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ExpressionError("the number is too large")
    return value
