"""A scripted teacher that is wrong on purpose, and the chat traces it leaves.

The teacher answers ``count``, ``list``, ``max`` and ``asc`` right. On the other kinds it makes the *same*
mistake with probability 0.7, and when it is asked to correct a query it makes it again with the same
probability. Mistakes that are systematic leave a policy that mostly errs but sometimes does it right, which
is what reinforcement learning needs. As a reviewer the teacher sees only what anybody would see at once: a
query that fails or returns nothing is wrong. So mistakes that do not run come back to be rewritten, and the
others go through unnoticed. The prompts are the messages that the agent sends, to the byte.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from spider.budget import BRIEF
from spider.databases import find
from spider.prompts import RIGHT, WRONG, Messages, fenced, to_check, to_rewrite, to_write
from spider.questions import (
    KINDS,
    MISTAKES,
    SQL,
    WORDINGS,
    Combination,
    ask,
    combinations,
    fill,
    thresholds,
)
from spider.sql.execution import SqlError, run
from spider.sql.schema import describe, read
from spider.sql.showing import ERROR, show, show_error

ERROR_RATE = 0.7
SLIP_RATE = 0.5
"""Share of the queries shown to the reviewer and the corrector whose column is one of another table."""
IT_IS_RIGHT = f"{RIGHT}."
IT_FAILS = f"The query does not run.\n{WRONG}."
NOTHING = f"The result is empty.\n{WRONG}."


@dataclass(frozen=True)
class Example:
    """One model call of a trace: what was sent, and the answer to learn."""

    messages: Messages
    reply: str


@dataclass(frozen=True)
class Lesson:
    """A question with its right query and the usual mistaken one (the right one where there is none)."""

    combination: Combination
    question: str
    right: str
    usual: str

    def query(self, rng: random.Random) -> str:
        """What the teacher writes: the mistake, most of the time."""
        return self.usual if rng.random() < ERROR_RATE else self.right


@lru_cache(maxsize=16)
def schema_of(database: str) -> str:
    """The schema as the agent of the small policy shows it."""
    return describe(find(database)[0], BRIEF.schema_chars, BRIEF.sample_rows)


@lru_cache(maxsize=20_000)
def result_of(database: str, query: str) -> str:
    """The outcome of a query as the agent of the small policy shows it."""
    try:
        return show(run(find(database)[0], query), BRIEF.result_chars, BRIEF.result_rows)
    except SqlError as error:
        return show_error(error, BRIEF.result_chars)


def judgement_of(result: str) -> str:
    """The teacher's review, by the result alone."""
    return IT_FAILS if result.startswith(ERROR) else NOTHING if result == "No rows." else IT_IS_RIGHT


def lessons(seed: int) -> Iterator[Lesson]:
    """Endless lessons, the kinds in turn, over the training combinations."""
    rng = random.Random(f"spider:lessons:{seed}")
    while True:
        for kind in KINDS:
            combination = rng.choice(combinations(kind, "train"))
            value = rng.choice(thresholds(combination)) if kind == "below" else 0
            yield Lesson(
                combination,
                ask(combination, rng.randrange(len(WORDINGS[kind])), value),
                fill(SQL[kind], combination, value),
                fill(MISTAKES.get(kind, SQL[kind]), combination, value),
            )


def write(lesson: Lesson, query: str) -> Example:
    """The first call: the teacher writes ``query``."""
    return Example(to_write(schema_of(lesson.combination.database), lesson.question), fenced(query))


def check(lesson: Lesson, query: str) -> Example:
    """The review of ``query``."""
    database = lesson.combination.database
    result = result_of(database, query)
    return Example(to_check(schema_of(database), lesson.question, query, result), judgement_of(result))


def rewrite(lesson: Lesson, tried: str, query: str) -> Example:
    """The correction of ``tried``, which is not the right one, by ``query``."""
    database = lesson.combination.database
    result = result_of(database, tried)
    prompt = to_rewrite(schema_of(database), lesson.question, tried, result, judgement_of(result))
    return Example(prompt, fenced(query))


def examples(seed: int) -> Iterator[tuple[Example, Example, Example | None]]:
    """Per lesson the call that writes, a review, and a correction if the reviewed query needs one."""
    rng = random.Random(f"spider:teacher:{seed}")
    for lesson in lessons(seed):
        query = lesson.query(rng)
        tried = slip(lesson, rng) if rng.random() < SLIP_RATE else lesson.usual
        needed = judgement_of(result_of(lesson.combination.database, tried)) != IT_IS_RIGHT
        yield (
            write(lesson, query),
            check(lesson, tried),
            rewrite(lesson, tried, lesson.query(rng)) if needed else None,
        )


def slip(lesson: Lesson, rng: random.Random) -> str:
    """A query of the lesson over another column or table, which may fail."""
    tables = read(find(lesson.combination.database)[0])
    table = rng.choice(tables)
    column = rng.choice(table.columns)
    about = lesson.combination
    strange = about._replace(a=column.name) if about.a else about._replace(n=column.name if about.n else "")
    kind = about.kind
    pattern = rng.choice((SQL[kind], MISTAKES.get(kind, SQL[kind])))
    return fill(pattern, strange, 7)
