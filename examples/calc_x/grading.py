"""The reward: find the answer in the agent's last message and compare it with the gold answer, 1.0 or 0.0.

The answer is what stands in ``### ANSWER: <answer> ###``, else the whole message. Two answers are equal when
their texts are; when the gold is an option letter, if the letters are; else if both are arithmetic and within
one percent of each other (so a gold of 0 needs exactly 0). What cannot be read as arithmetic is not equal to
anything. Model text is only ever read by the restricted evaluator.
"""

from __future__ import annotations

import math
import re

from calc_x.expression import ExpressionError, evaluate, to_float

ANSWER_FORM = "When you have the answer, give it between three sharps: ### ANSWER: <answer> ###"
"""The sentence by which an agent asks its model for the form that ``extract`` reads."""
RELATIVE_TOLERANCE = 1e-2

# Possessive and look-behind forms keep the search linear on long runs of blanks.
_ANSWER = re.compile(r"###\s*+ANSWER:\s*+(.+?)(?:(?<!\s)\s*+###|$)")
_NOT_LETTER = re.compile(r"[\s()\[\]{}]+")


def grade(text: str | None, gold: str) -> float:
    """Reward of a final message: 1.0 when its answer equals ``gold``, else 0.0 (also for no message)."""
    return 1.0 if text and equal(extract(text), gold) else 0.0


def extract(text: str) -> str:
    """The first marked answer in a message, or the whole message when none is marked; stripped."""
    match = _ANSWER.search(text)
    return (match[1] if match else text).strip()


def equal(answer: str, gold: str) -> bool:
    """Whether an answer says the same as the gold answer."""
    answer, gold = answer.strip(), gold.strip()
    if not answer or not gold:
        return False
    if answer == gold:
        return True
    letter = _NOT_LETTER.sub("", gold)
    if len(letter) == 1 and letter.isascii() and letter.isalpha():
        return _NOT_LETTER.sub("", answer).upper() == letter.upper()
    try:
        return math.isclose(_value(answer), _value(gold), rel_tol=RELATIVE_TOLERANCE)
    except ExpressionError:
        return False


def _value(text: str) -> float:
    """The number in front of a `` = around 0.333`` that Calc-X puts behind fractions."""
    return to_float(evaluate(text.partition(" = around ")[0]))
