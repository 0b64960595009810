r"""An answer as a person writes it, read as one number: ``$72``, ``72 apples``, ``**72**``, ``\boxed{72}``,
``x = 72``, ``1,234``, ``66.7%``, ``2 1/3``, ``\frac{1}{3}``.

An answer commits to one number. Two numbers that are not one arithmetic expression (``70 or 72``), a range
(``at least 72``) and a negation (``not 72``) cannot be read. Only the restricted evaluator ever computes
anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal, DecimalException
from fractions import Fraction

from calc_x.expression import MAX_LENGTH, ExpressionError, Number, evaluate

MAX_WORDS = 12
"""Words around the number of an answer; more of them are a text and no answer."""
SCALES: dict[str, int] = {
    "k": 1_000, "K": 1_000, "M": 10**6, "B": 10**9, "bn": 10**9, "hundred": 100, "thousand": 1_000,
    "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12, "dozens": 12,
}  # fmt: skip
"""Words behind a number that multiply it; ``M`` is a million, and ``m`` a metre."""


def _these(words: str) -> frozenset[str]:
    return frozenset(words.split())


_HEDGES = _these("""or either neither nor between maybe perhaps wrong incorrect half halves quarter quarters
    thirds hundreds thousands millions""")
_NEGATIONS = _these("not no never none isnt arent wasnt")
_NUMBERS = _these("""zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred thousand million billion trillion dozen dozens""")
_RANGES = _these("""than least most over under below above nearly almost minus negative plus within twice
    double triple""")
_PER = {"in", "per", "for", "after", "of", "every", "each"}
"""Behind these a number word only says what is counted: ``23 songs in two days``."""
_PERCENT = {"percent", "percentage", "pct", "percents"}

_CURRENCY = "$€£¥₹"
# From the first digit, with the signs that belong to it, to the last one.
_CORE = re.compile(r"(?P<sign>(?:[-−–+]\s*)?)(?P<core>[(.]*[0-9](?:.*[0-9])?\.?[)\s]*%?)", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+(?:['’.][^\W\d_]+)*")
_LITERAL = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]{1,3})?")
_LEAD = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:final\s+|correct\s+)?answer(?:\s+is)?:?"
)
_EMPHASIS = re.compile(r"(?<![\w)*])(\*\*|__|\*|_|`)(?=\S)([^*_`\n]+)(?<=\S)\1(?![\w(*])")
_POWER_OF_UNIT = re.compile(r"(?<![\w.])([^\W\d_]{1,10})\^\{?[23]\}?")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_COMMANDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_PLAIN = {
    "\\left": "", "\\right": "", "\\times": "*", "\\cdot": "*", "\\div": "/", "\\approx": "=", "≈": "=",
    "{,}": ",", "\\,": " ", "\\!": "", "\\;": " ", "\\ ": " ", "\\$": "$", "\\%": "%", "\\(": " ", "\\)": " ",
    "\\[": " ", "\\]": " ", "\u00a0": " ", "\u202f": " ",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says. ``places``: decimal places it is written with; None where it is exact, such as a
    fraction. ``percent``: it is followed by a percent sign or word; ``value`` is then in percent points.
    ``scale``: the word of ``SCALES`` by which ``value`` has been multiplied.
    """

    value: Number
    places: int | None = None
    percent: bool = False
    scale: str = ""

    def shifted(self, power: int) -> Reading:
        """The same answer in a unit ten to the ``power`` times as small, no longer in percent."""
        places = None if self.places is None else self.places - power
        return replace(self, value=self.value * Fraction(10) ** power, places=places, percent=False)

    def times(self, scale: str) -> Reading:
        """The answer multiplied by a word of ``SCALES``."""
        factor = SCALES[scale]
        zeros = len(str(factor)) - 1
        if factor == 10**zeros:
            return replace(self.shifted(zeros), scale=scale)
        return replace(self, value=self.value * factor, places=None, scale=scale)


def read(text: str, marked: bool = True) -> list[Reading]:
    """The number an answer commits to: one reading for every side of its equations; none if it has none.

    ``marked``: the text was marked as the answer, so words may stand around the number; without a mark only
    a unit behind it and a short lead-in (``the answer is``) may, so that an echoed sentence is no answer.
    """
    text = plain(text)
    if len(text) > MAX_LENGTH:
        return []
    *names, last = re.split(r"(?<![<>!=])=+(?![<>])", text)
    readings = []
    for side in names:
        if any(c.isdigit() for c in side):
            readings.append(_side(side, marked))
        elif not _named(side, marked):
            return []
    readings.append(_side(last, marked))
    return [] if None in readings else [reading for reading in readings if reading is not None]


def plain(text: str) -> str:
    """The text without emphasis, LaTeX and closing punctuation."""
    text = text[: 4 * MAX_LENGTH].strip()
    for written, meant in _PLAIN.items():
        text = text.replace(written, meant)
    text = _FRACTION.sub(r"(\1)/(\2)", _COMMANDS.sub(r" \1 ", text))
    text = _EMPHASIS.sub(r"\2", text)
    text = _POWER_OF_UNIT.sub(r"\1", text)
    text = text.strip(" \t\r\n*_`\"'“”")
    if (text[:1], text[-1:]) in (("{", "}"), ("<", ">")):
        text = text[1:-1]
    return text.rstrip(" .!,;:*_`\"'“”").strip()


def _side(text: str, marked: bool) -> Reading | None:
    """The number of one side of an equation, with the words around it looked at."""
    text = re.sub(rf"[{_CURRENCY}]", " ", text).strip()
    match = _CORE.search(text)
    if match is None:
        return None
    before, after = text[: match.start()], text[match.end() :]
    if not _fits(before, after, marked):
        return None
    try:
        reading = _number(match["core"])
    except ExpressionError:
        return None
    if match["sign"][:1] in ("-", "−", "–") and match["sign"]:
        reading = replace(reading, value=-reading.value)
    return _in_unit(reading, after)


def _fits(before: str, after: str, marked: bool) -> bool:
    """Whether the texts around a number leave it the answer."""
    if before[-1:].isalnum() or re.search(r"[<>±?]", before + after):
        return False
    first, behind = _words(before), _words(after)
    if not marked and first and not _LEAD.fullmatch(before.strip(" *_:")):
        return False
    if len(first) + len(behind) > (MAX_WORDS if marked else 6):
        return False
    if set(first) & (_HEDGES | _NEGATIONS | _NUMBERS | _RANGES):
        return False
    behind = behind[1:] if _scale(after) else behind
    pairs = zip(["", *behind], behind, strict=False)
    if any(word in _NUMBERS and previous not in _PER for previous, word in pairs):
        return False
    return not (set(behind) & _HEDGES or set(behind[:2]) & _NEGATIONS)


def _named(side: str, marked: bool) -> bool:
    """Whether the text in front of an equals sign names what is answered: ``x``, ``total cost``."""
    words = _words(side)
    fits = len(words) <= (MAX_WORDS if marked else 4)
    return fits and not set(words) & (_HEDGES | _NEGATIONS | _NUMBERS | _RANGES)


def _number(core: str) -> Reading:
    """The value of digits and operators, and how many decimal places they show."""
    core = core.strip()
    if core.count("(") > core.count(")"):  # the bracket closes behind a unit: (72 apples)
        core = core.removeprefix("(")
    percent = core.endswith("%")
    core = core.removesuffix("%").strip()
    value = evaluate(core)
    places = None
    if core and _LITERAL.fullmatch(core):
        try:
            exponent = Decimal(core.replace(",", "")).as_tuple().exponent
        except DecimalException as error:
            raise ExpressionError(f"{core!r} is no number") from error
        places = -exponent if isinstance(exponent, int) else None
    return Reading(value, places, percent)


def _in_unit(reading: Reading, after: str) -> Reading:
    """The reading with the scale or percent word behind it."""
    words = _words(after)
    if (words and words[0] in _PERCENT) or words[:2] == ["per", "cent"]:
        return replace(reading, percent=True)
    scale = _scale(after)
    return reading.times(scale) if scale else reading


def _scale(after: str) -> str:
    """The first word behind a number if it multiplies the number, else empty."""
    first = _WORD.search(after)
    if first is None:
        return ""
    word = first[0] if len(first[0]) == 1 else first[0].lower()
    return word if word in SCALES else ""


def _words(text: str) -> list[str]:
    return [word.lower().replace("'", "").replace("’", "") for word in _WORD.findall(text)]
