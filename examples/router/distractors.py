"""The wrong databases that stand beside the right one.

Three kinds, each drawn with a random generator that the caller seeds:

- ``random``: any of the others;
- ``same-domain``: from the ``NEAREST`` databases by the words of their schemas (Jaccard index: the words in
  both, of the words in either);
- ``near-name``: from the ``NEAREST`` databases by name (words that both names have, then difflib's ratio of
  equal letters).

Invariant: what is drawn is a function of the pool, the database, the kind and the generator's state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import Literal, get_args

from router.vocabulary import schema_words, words

Kind = Literal["random", "same-domain", "near-name"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NEAREST = 4
"""Neighbours from which distractors of a near kind are drawn."""


def draw(database: str, pool: Sequence[str], kind: Kind, count: int, rng: random.Random) -> list[str]:
    """Return ``count`` distractors of ``kind`` for ``database`` from ``pool``, in random order.

    Raise ``ValueError`` for an unknown kind, and for a pool that has too few other databases.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of distractors {kind!r}: choose from {', '.join(KINDS)}")
    others = tuple(sorted(set(pool) - {database}))
    if len(others) < count:
        raise ValueError(
            f"{count} distractors of {database!r} cannot be drawn: the pool has {len(others)} others"
        )
    if kind != "random":
        others = nearest(database, others, kind)[: max(NEAREST, count)]
    return rng.sample(others, count)


@cache
def nearest(database: str, others: tuple[str, ...], kind: Kind) -> tuple[str, ...]:
    """Return ``others``, the most similar to ``database`` first; equally similar ones by name."""
    similar: Callable[[str, str], object] = domain_similarity if kind == "same-domain" else name_similarity
    return tuple(sorted(sorted(others), key=lambda other: similar(database, other), reverse=True))


def domain_similarity(one: str, other: str) -> float:
    """Return the Jaccard index of the words of two schemas, 0 to 1."""
    mine, its = schema_words(one), schema_words(other)
    return len(mine & its) / len(mine | its)


def name_similarity(one: str, other: str) -> tuple[int, float]:
    """Return the number of words that two names share, and the ratio of their letters that are equal."""
    ratio = SequenceMatcher(None, *sorted((one.lower(), other.lower())), autojunk=False).ratio()
    return len(words(one) & words(other)), ratio
