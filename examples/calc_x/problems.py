"""Generated word problems: eight kinds of one- and two-step arithmetic, told in a few hundred ways.

A problem is an intro sentence, one or two event sentences and a question; a *combination* is the choice of
these sentence forms. The split is by combination and by numbers at once: about a quarter of the combinations
is held out, and the first two numbers of a held-out problem satisfy ``(31 a + 17 b) mod 5 == 0`` while those
of a training problem never do. So every held-out problem is a new combination with new numbers, although each
single sentence occurs in training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple, TypedDict

Split = Literal["train", "heldout"]
Kind = Literal["add", "sub", "mul", "div", "add_sub", "mul_add", "mul_sub", "sub_div"]


class Problem(TypedDict):
    """One item of a dataset, generated or real; plain JSON types, so it travels as a task unchanged."""

    id: str
    question: str
    result: str
    """The gold answer: a number as text, or an option letter."""
    source: str
    """Which set the problem comes from: generated, svamp, gsm8k, aqua, gsmhard, or the source named by a
    Calc-X row.
    """
    kind: str
    """The kind within its source (generated: one of ``KINDS``); empty when the source has none."""
    expression: str
    """An expression that evaluates to the result; empty when the source gives none."""


class Combination(NamedTuple):
    """A kind with the index of the form chosen in each of its sentence slots."""

    kind: Kind
    forms: tuple[int, ...]


KINDS: tuple[Kind, ...] = ("add", "sub", "mul", "div", "add_sub", "mul_add", "mul_sub", "sub_div")
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "stamps", "shells", "buttons", "cards", "stones")

FORMS: dict[str, tuple[str, ...]] = {
    "have": (
        "{name} has {a} {things}.",
        "{name} starts the day with {a} {things}.",
        "There are {a} {things} on the desk of {name}.",
        "In a drawer {name} keeps {a} {things}.",
    ),
    "groups": (
        "{name} has {a} boxes with {b} {things} in each box.",
        "There are {a} bags, and {name} puts {b} {things} into every bag.",
    ),
    "gain": (
        "Then {name} buys {n} more.",
        "A friend brings {n} more {things}.",
        "Later {name} finds another {n}.",
    ),
    "lose": (
        "Then {name} gives {n} of them away.",
        "After that {n} {things} get lost.",
        "Later {name} sells {n}.",
    ),
    "share": (
        "{name} shares them equally among {n} friends.",
        "They are packed into {n} equal piles.",
    ),
    "total": (
        "How many {things} are there now?",
        "How many {things} does {name} have in the end?",
        "What is the number of {things} now?",
    ),
    "part": (
        "How many {things} are in one share?",
        "How many {things} make up each part?",
    ),
}
SLOTS: dict[Kind, tuple[str, ...]] = {
    "add": ("have", "gain", "total"),
    "sub": ("have", "lose", "total"),
    "mul": ("groups", "total"),
    "div": ("have", "share", "part"),
    "add_sub": ("have", "gain", "lose", "total"),
    "mul_add": ("groups", "gain", "total"),
    "mul_sub": ("groups", "lose", "total"),
    "sub_div": ("have", "lose", "share", "part"),
}
EXPRESSIONS: dict[Kind, str] = {
    "add": "{0}+{1}",
    "sub": "{0}-{1}",
    "mul": "{0}*{1}",
    "div": "{0}/{1}",
    "add_sub": "{0}+{1}-{2}",
    "mul_add": "{0}*{1}+{2}",
    "mul_sub": "{0}*{1}-{2}",
    "sub_div": "({0}-{1})/{2}",
}


def combinations(kind: Kind, split: Split) -> list[Combination]:
    """All combinations of a kind on one side of the split; each sentence form occurs on the training side."""
    held = split == "heldout"
    every = product(*(range(len(FORMS[slot])) for slot in SLOTS[kind]))
    return [Combination(kind, forms) for forms in every if (sum(forms) % 4 == 0) is held]


def numbers_held_out(a: int, b: int) -> bool:
    """Whether a problem whose first two numbers are ``a`` and ``b`` belongs to the held-out side."""
    return (31 * a + 17 * b) % 5 == 0


def generate(split: Split, n: int, seed: int = 0) -> list[Problem]:
    """``n`` problems, the kinds in turn; a shorter list with the same seed is a prefix of a longer one."""
    if split not in ("train", "heldout"):
        raise ValueError(f"unknown split {split!r} of the generated problems: use 'train' or 'heldout'")
    if n < 0:
        raise ValueError(f"cannot generate {n} problems: n must be 0 or more")
    stream = problems(split, seed)
    return [next(stream) for _ in range(n)]


def problems(split: Split, seed: int = 0) -> Iterator[Problem]:
    """The endless stream of which ``generate`` takes the first ``n``."""
    rng = random.Random(f"calc_x:{split}:{seed}")
    choices = {kind: combinations(kind, split) for kind in KINDS}
    index = 0
    while True:
        kind = KINDS[index % len(KINDS)]
        combination = rng.choice(choices[kind])
        numbers = _numbers(kind, split, rng)
        question = tell(combination, numbers, rng.choice(NAMES), rng.choice(THINGS))
        yield Problem(
            id=f"generated-{split}-{seed}-{index:05d}",
            question=question,
            result=str(_result(kind, numbers)),
            source="generated",
            kind=kind,
            expression=EXPRESSIONS[kind].format(*numbers),
        )
        index += 1


def tell(combination: Combination, numbers: tuple[int, ...], name: str, things: str) -> str:
    """The text of a problem: the chosen form of each slot, filled in, in order."""
    sentences = []
    rest = list(numbers)
    for slot, form in zip(SLOTS[combination.kind], combination.forms, strict=True):
        values: dict[str, int] = {}
        if slot == "have":
            values = {"a": rest.pop(0)}
        elif slot == "groups":
            values = {"a": rest.pop(0), "b": rest.pop(0)}
        elif slot in ("gain", "lose", "share"):
            values = {"n": rest.pop(0)}
        sentences.append(FORMS[slot][form].format(name=name, things=things, **values))
    return " ".join(sentences)


def _numbers(kind: Kind, split: Split, rng: random.Random) -> tuple[int, ...]:
    """Numbers between 2 and 99 on the right side of the split whose result is a whole number, 0 or more."""
    while True:
        numbers = _draw(kind, rng)
        fits = all(2 <= x <= 99 for x in numbers) and _result(kind, numbers) >= 0
        if fits and numbers_held_out(*numbers[:2]) is (split == "heldout"):
            return numbers


def _draw(kind: Kind, rng: random.Random) -> tuple[int, ...]:
    if kind == "div":
        divisor = rng.randint(2, 12)
        return divisor * rng.randint(1, 99 // divisor), divisor
    if kind == "sub_div":
        divisor = rng.randint(2, 12)
        lost = rng.randint(2, 97)
        return lost + divisor * rng.randint(1, 48), lost, divisor
    if kind in ("mul", "mul_add", "mul_sub"):
        groups, size = rng.randint(2, 20), rng.randint(2, 50)
        return (groups, size) if kind == "mul" else (groups, size, rng.randint(2, 99))
    return tuple(rng.randint(2, 99) for _ in range(3 if kind == "add_sub" else 2))


def _result(kind: Kind, numbers: tuple[int, ...]) -> int:
    a, b, *rest = numbers
    c = rest[0] if rest else 0
    results = {"add": a + b, "sub": a - b, "mul": a * b, "div": a // b, "add_sub": a + b - c}
    results |= {"mul_add": a * b + c, "mul_sub": a * b - c, "sub_div": (a - b) // c if c else 0}
    return results[kind]
