"""Distractors are drawn by seed from what their kind allows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from router.datasets import questions
from router.distractors import KINDS, NEAREST, Kind, domain_similarity, draw, name_similarity, nearest

DEV = sorted({question["db_id"] for question in questions("dev")})


def drawn(kind: Any, seed: int = 1, pool: list[str] = DEV, count: int = 3) -> list[str]:
    return draw("singer", pool, kind, count, random.Random(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_a_function_of_the_seed(kind: Kind) -> None:
    found = [drawn(kind, seed) for seed in range(20)]
    assert found == [drawn(kind, seed, pool=DEV[::-1]) for seed in range(20)]
    assert len({tuple(one) for one in found}) > 5
    for one in found:
        assert len(set(one)) == 3 and "singer" not in one and set(one) <= set(DEV)


@pytest.mark.parametrize("kind", ["same-domain", "near-name"])
def test_near_kinds_draw_from_the_nearest(kind: Kind) -> None:
    near = nearest("singer", tuple(name for name in DEV if name != "singer"), kind)
    assert {name for seed in range(50) for name in drawn(kind, seed)} == set(near[:NEAREST])
    assert near[0] == "concert_singer"


def test_similarities() -> None:
    assert domain_similarity("singer", "singer") == 1.0
    assert domain_similarity("singer", "concert_singer") == domain_similarity("concert_singer", "singer")
    assert domain_similarity("singer", "concert_singer") > domain_similarity("singer", "flight_2")
    assert name_similarity("network_1", "network_2") == (1, pytest.approx(8 / 9))
    assert name_similarity("singer", "swimming") < name_similarity("singer", "concert_singer")
    assert name_similarity("voter_1", "singer") == name_similarity("singer", "voter_1")


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of distractors 'far': choose from random"):
        drawn("far")
    with pytest.raises(ValueError, match="3 distractors of 'singer' cannot be drawn: the pool has 2 others"):
        drawn("random", pool=["singer", "car_1", "tvshow"])
