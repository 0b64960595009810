"""The agent's only tool: a calculator over the restricted evaluator, in process.

``calculate`` never raises on what a model writes: bad input comes back as text that starts with ``error:``,
so that the model reads it like any other tool result.
"""

from __future__ import annotations

from calc_x.expression import ExpressionError, evaluate, render

DESCRIPTION = "Calculate the value of an arithmetic expression."


async def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression such as ``(12+5)*3`` as a number, or ``error: ...``.

    A coroutine, because frameworks run plain functions of a tool in a thread, which costs more than the
    arithmetic.
    """
    return calculate_text(expression)


def calculate_text(expression: str) -> str:
    """``calculate`` for callers without an event loop."""
    try:
        return render(evaluate(expression))
    except ExpressionError as error:
        return f"error: {error}"
