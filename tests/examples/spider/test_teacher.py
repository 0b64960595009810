"""The teacher: right where it must be, wrong in one way where it should be, at the rate it says."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from random import Random

from spider.databases import find
from spider.prompts import fenced, is_right, query_in
from spider.questions import KINDS, MISTAKES
from spider.sql.matching import match
from spider.sql.showing import ERROR
from spider.teacher import (
    ERROR_RATE,
    IT_FAILS,
    check,
    examples,
    judgement_of,
    lessons,
    result_of,
    rewrite,
    slip,
    write,
)


def test_the_usual_query_is_the_mistake_of_its_kind() -> None:
    for lesson in islice(lessons(1), 120):
        database = find(lesson.combination.database)
        assert match(lesson.right, lesson.right, database).match
        usual = match(lesson.right, lesson.usual, database).match
        assert usual is (lesson.combination.kind not in MISTAKES)


def test_it_errs_at_the_stated_rate_on_the_kinds_that_have_a_mistake() -> None:
    right: dict[str, list[bool]] = defaultdict(list)
    rng = Random(0)
    for lesson in islice(lessons(2), 2_400):
        right[lesson.combination.kind].append(lesson.query(rng) == lesson.right)
    for kind in KINDS:
        share = sum(right[kind]) / len(right[kind])
        assert abs(share - (1 - ERROR_RATE if kind in MISTAKES else 1.0)) < 0.1, kind


def test_a_mistake_that_fails_is_seen_and_corrected_and_others_go_through() -> None:
    for lesson in islice(lessons(3), 48):
        review = check(lesson, lesson.usual)
        fails = lesson.combination.kind in ("avg", "highest")
        assert (review.reply == IT_FAILS) is fails
        assert is_right(check(lesson, lesson.right).reply)
        if fails:
            correction = rewrite(lesson, lesson.usual, lesson.right)
            assert (
                ERROR in correction.messages[1]["content"]
                and review.reply in correction.messages[1]["content"]
            )
            assert query_in(correction.reply) == lesson.right


def test_the_stream_is_deterministic_and_has_all_three_calls() -> None:
    stream = list(islice(examples(1), 240))
    assert stream[:20] == list(islice(examples(1), 20))
    assert 30 < sum(rewritten is not None for _, _, rewritten in stream) < 200
    for written, reviewed, _ in stream:
        assert (
            written.reply.startswith("```sql\n") and reviewed.reply.startswith("THE QUERY")
        ) or "\n" in reviewed.reply
    assert len({judgement_of(text) for text in ("Error: x", "No rows.", "1 row: a\n1")}) == 3


def test_a_slip_is_another_query_of_the_lesson() -> None:
    rng = Random(1)
    for lesson in islice(lessons(4), 60):
        query = slip(lesson, rng)
        assert query.startswith("SELECT") and result_of(lesson.combination.database, query)
        assert write(lesson, query).reply == fenced(query)
