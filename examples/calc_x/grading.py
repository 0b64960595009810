r"""The reward: find the answer in the agent's last message and compare it with the gold answer, 1.0 or 0.0.

The answer is the last ``### ANSWER: <answer> ###``, so that a model may correct itself; else the last
``\boxed{…}``; else the whole message. It is right

- if its text is the gold text;
- where the gold answer is an option letter, if it names that letter;
- where the gold answer is a whole number, if it says exactly that number: there is no tolerance;
- where the gold answer is another number (``2/3``, ``18.333``), if it is that number, or that number rounded
  or cut at the decimal place at which the answer ends, as long as it is within one percent.

How an answer is read is said in ``calc_x.answers``. Model text is only ever read by the restricted evaluator.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from calc_x.answers import SCALES, Reading, plain, read
from calc_x.expression import ExpressionError, Number, evaluate, to_float

ANSWER_FORM = "When you have the answer, give it between three sharps: ### ANSWER: <answer> ###"
"""The sentence by which an agent asks its model for the form that ``extract`` reads."""
RELATIVE_TOLERANCE = Fraction(1, 100)
"""How far a rounded answer may be from a gold answer that is no whole number; whole numbers have none."""
GOLD_PLACES = 2
"""A decimal gold answer with so many places may itself be rounded; a more exact answer is then right too."""

_MARK = re.compile(r"###\s*+ANSWER:", re.IGNORECASE)
_LETTER = re.compile(
    r"(?i)(?:(?:the\s+)?(?:answer|option|choice)(?:\s+is)?:?\s*)?[\s()\[\]{}]*([a-z])[\s()\[\]{}.:]*"
)
_LETTER_GOLD = re.compile(r"[\s()\[\]{}]*([A-Za-z])[\s()\[\]{}.]*")
_ASKS_PERCENT = re.compile(
    r"(?i)\b(?:what|which|how many|how much|find|calculate)\b(?:\s+\w+){0,3}\s+(?:per ?cent(?:age)?|%)"
    r"|\b(?:as|in) (?:a |the )?per ?cent(?:age)?\b"
)
_ASKS_SCALE = r"(?i)\b(?:how many|in) {}s?\b"


def grade(text: str | None, gold: str, question: str = "") -> float:
    """Reward of a final message: 1.0 when its answer equals ``gold``, else 0.0 (also for no message).

    ``question`` tells what is counted: where it asks for a percentage, ``72%`` is the gold answer ``72``.
    """
    if not text:
        return 0.0
    answer, marked = _found(text)
    return 1.0 if equal(answer, gold, question, marked) else 0.0


def extract(text: str) -> str:
    """The last marked answer in a message, or the whole message when none is marked; stripped."""
    return _found(text)[0]


def equal(answer: str, gold: str, question: str = "", marked: bool = True) -> bool:
    """Whether an answer says the same as the gold answer; ``marked`` as of ``calc_x.answers.read``."""
    answer, gold = answer.strip(), gold.strip()
    if not answer or not gold:
        return False
    if answer == gold:
        return True
    answer = plain(_unboxed(answer) or answer)
    if answer == gold:
        return True
    if letter := _LETTER_GOLD.fullmatch(gold):
        said = _LETTER.fullmatch(answer)
        return said is not None and said[1].upper() == letter[1].upper()
    wanted = _gold(gold)
    said_numbers = read(answer, marked)
    return wanted is not None and bool(said_numbers) and all(_same(r, wanted, question) for r in said_numbers)


def asks_percent(question: str) -> bool:
    """Whether a question asks for a percentage, so that ``72%`` and ``72`` are the same answer."""
    return _ASKS_PERCENT.search(question) is not None


def _found(text: str) -> tuple[str, bool]:
    """The answer in a message, and whether it was marked as one."""
    _, *marked = _MARK.split(text)
    for piece in reversed(marked):
        answer = re.split(r"###|\n", piece.lstrip(), maxsplit=1)[0].strip()
        if answer != "<answer>":  # the request itself, repeated
            return answer, True
    boxed = _unboxed(text)
    return (boxed, True) if boxed is not None else (text.strip(), False)


def _unboxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{…}``, whose braces must be closed."""
    _, found, rest = text.rpartition("\\boxed{")
    depth = 1
    for place, character in enumerate(rest if found else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[:place].strip()
    return None


def _gold(gold: str) -> Reading | None:
    """The gold number, without the `` = around 0.333`` that Calc-X puts behind fractions; None for a text."""
    text = gold.partition(" = around ")[0]
    readings = read(text)
    if len(readings) == 1:
        return readings[0]
    try:
        return Reading(evaluate(text))
    except ExpressionError:
        return None


def _same(said: Reading, gold: Reading, question: str) -> bool:
    if gold.percent:
        # 72% may be said as 72%, 72 or 0.72.
        return _equals(said, gold) or (not said.percent and _equals(said.shifted(2), gold))
    if said.percent:
        in_points = asks_percent(question) and _equals(said, gold)
        return in_points or _equals(said.shifted(-2), gold)
    if said.scale and re.search(_ASKS_SCALE.format(said.scale.removesuffix("s")), question):
        return said.value == gold.value * SCALES[said.scale]
    return _equals(said, gold)


def _equals(said: Reading, gold: Reading) -> bool:
    """Whether two numbers are the same: whole numbers exactly, others as far as they are written out."""
    if said.value == gold.value:
        return True
    if _whole(gold.value):
        return False
    if isinstance(said.value, float) or isinstance(gold.value, float):
        return _close_floats(said.value, gold.value)
    if abs(said.value - gold.value) > RELATIVE_TOLERANCE * abs(gold.value):
        return False
    if said.places is not None and said.value in _shortened(gold.value, said.places):
        return True
    return (
        gold.places is not None
        and gold.places >= GOLD_PLACES
        and gold.value == _shortened(said.value, gold.places)[0]
    )


def _whole(value: Number) -> bool:
    return value == int(value)


def _close_floats(a: Number, b: Number) -> bool:
    """Whether two values are the same but for the last digits of a fractional power."""
    try:
        return math.isclose(to_float(a), to_float(b), rel_tol=1e-9)
    except ExpressionError:
        return False


def _shortened(value: Fraction, places: int) -> tuple[Fraction, ...]:
    """A number rounded (a half away from zero) and cut at a decimal place."""
    unit = Fraction(1, 10) ** places
    units, sign = abs(value) / unit, -1 if value < 0 else 1
    return sign * unit * int(units + Fraction(1, 2)), sign * unit * int(units)
