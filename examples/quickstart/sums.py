"""Sums and differences of two digits, for models to which calc_x's word problems are too hard.

``load`` is a dataset. A quarter of them is held out: no such pair of numbers is trained on.
"""

from __future__ import annotations

import random

SIGNS = "+-"
DIGITS = range(2, 10)


def load(split: str, limit: int, seed: int = 0) -> list[dict[str, str]]:
    """At most ``limit`` of the split ``train`` or ``heldout``, in an order that ``seed`` decides."""
    if split not in ("train", "heldout"):
        raise ValueError(f"split: {split!r} is none; the splits are 'train' and 'heldout'")
    every = [(a, sign, b) for sign in SIGNS for a in DIGITS for b in DIGITS]
    random.Random(f"quickstart.sums:{seed}").shuffle(every)
    mine = [one for one in every if ((one[0] + 3 * one[2]) % 4 == 0) is (split == "heldout")]
    return [
        {"question": f"What is {a} {sign} {b}?", "result": str(a + b if sign == "+" else a - b)}
        for a, sign, b in mine[:limit]
    ]
