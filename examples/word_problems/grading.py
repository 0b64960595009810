"""The reward: the value of the model's expression against the gold answer, exactly, 1.0 or 0.0."""

from __future__ import annotations

from calc_x.expression import ExpressionError, Number, evaluate


def grade(text: str, gold: str) -> float:
    """Return 1.0 if ``text`` is one expression with the value of ``gold``, else 0.0.

    The whole text must be the expression. There is no tolerance, and text of a model is only ever read by the
    restricted evaluator.
    """
    value = value_of(text)
    return 1.0 if value is not None and value == value_of(gold) else 0.0


def value_of(text: str) -> Number | None:
    """Return the value of an expression; ``None`` if the text is none."""
    try:
        return evaluate(text)
    except ExpressionError:
        return None
