"""The formula of a multigrader: ``+ - * / ^``, parentheses, numbers, names of graders, and the documented
functions.

It is read by Python's own parser into a tree, of which only these nodes are known; nothing is evaluated as
Python. ``^`` is a power, and binds as one.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from agl_judge.client import BadVerdict

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
LONGEST = 10_000
"""Characters of a formula, at most."""


class Formula:
    """A formula over ``names``. Raise :class:`ValueError` for anything else than a formula of these."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"it has {len(text)} characters, {LONGEST} at most")
        if "**" in text or "//" in text:
            raise ValueError("a power is written ^, and there is no //")
        try:
            self._tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ValueError(f"it is no formula: {getattr(error, 'msg', error)}") from None
        self._check(self._tree, names)

    def _check(self, node: ast.expr, names: frozenset[str]) -> None:
        match node:
            case ast.Constant(value=bool()):
                raise ValueError(f"{node.value!r} is no number")
            case ast.Constant(value=int() | float()):
                return
            case ast.Name(id=name) if name in names:
                return
            case ast.Name(id=name):
                known = ", ".join(sorted(names))
                raise ValueError(f"{name!r} is no grader (they are {known})")
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=one):
                return self._check(one, names)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                self._check(left, names)
                return self._check(right, names)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
                for one in args:
                    self._check(one, names)
                return
        raise ValueError(f"{ast.unparse(node)[:80]!r} is no part of a formula")

    def value(self, scores: Mapping[str, float]) -> float:
        """Return the value. Raise :class:`BadVerdict` where there is none, as of 1/0."""
        try:
            found = float(self._value(self._tree, scores))
        except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
            raise BadVerdict(f"the formula has no value here: {error}") from None
        if not math.isfinite(found):
            raise BadVerdict(f"the formula is {found} here")
        return found

    def _value(self, node: ast.expr, scores: Mapping[str, float]) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Name(id=name):
                return scores[name]
            case ast.UnaryOp(op=op, operand=one):
                return -self._value(one, scores) if isinstance(op, ast.USub) else self._value(one, scores)
            case ast.BinOp(left=left, op=op, right=right):
                return _BINARY[type(op)](self._value(left, scores), self._value(right, scores))
            case ast.Call(func=ast.Name(id=name), args=args):
                return _FUNCTIONS[name](*(self._value(one, scores) for one in args))
        raise ValueError(ast.unparse(node))
