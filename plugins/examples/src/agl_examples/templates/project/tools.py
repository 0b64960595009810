"""The calculator that the agent may call."""

from __future__ import annotations

import ast
import operator
from fractions import Fraction

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    try:
        value = number(expression)
    except (ArithmeticError, SyntaxError, ValueError, RecursionError) as error:
        return f"error: {error}"
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def number(text: str) -> Fraction:
    """Return the exact value of numbers, brackets and ``+ - * /``. Raise ``ValueError`` for anything else."""
    if len(text) > 200:
        raise ValueError("the expression is too long")
    return _value(ast.parse(text.strip(), mode="eval").body)


def _value(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return Fraction(str(value))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
            return Fraction(SIGNS[type(sign)](_value(left), _value(right)))
    raise ValueError("only numbers, brackets and + - * / are understood")
