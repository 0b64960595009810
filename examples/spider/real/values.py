"""Values of a database that a question names, as conditions of SQL: ``people.nationality = 'France'``.

A model that never saw a database cannot know in which column a value lies, nor how it is written there. Other
programs for this task look it up too (BRIDGE, arXiv:2012.12627; PICARD, arXiv:2109.05093).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from spider.sql.schema import quoted, read

WORDS, CONDITIONS, COLUMNS = 6, 3, 2
"""Words of a value, values that are shown of a question, and columns of one value, at most."""
CHARS, DISTINCT = 60, 20_000
"""Longer values are not looked for, and no more values of a column are read."""
_COMMON = (
    "a all an and any are as at be been both by do does each find first for from give has have how i id in "
    "is it last least less list many me more most name no not of on or order other out over per show state "
    "than that the their them there these to total two type what when where which who whose "
    "with year"
)
"""Words that say nothing of a value, unless the question quotes them."""
_COMMON_WORDS = frozenset(_COMMON.split())
_WORD = re.compile(r"[^\W_]+")


def conditions(database: Path, question: str) -> list[str]:
    """Return at most ``CONDITIONS`` conditions that hold a value of the question, in its order.

    A value counts as named if its text is in the question as whole words, in upper or lower case; the longest
    one counts where several begin or overlap.
    """
    known, found, end = _values(database), [], -1
    for start, stop, text in _spans(question):
        if start < end or text not in known:
            continue
        columns = known[text]
        found.append(" or ".join(f"{column} = {value}" for column, value in columns.items()))
        end = stop
    return found[:CONDITIONS]


def _spans(question: str) -> Iterator[tuple[int, int, str]]:
    """Pieces of one to ``WORDS`` words with their places, by place and the longest first."""
    words = list(_WORD.finditer(question))
    for first, word in enumerate(words):
        for last in reversed(words[first : first + WORDS]):
            text = question[word.start() : last.end()].lower()
            alone = word is last and not question[: word.start()].endswith(("'", '"'))
            if not (alone and (text in _COMMON_WORDS or len(text) < 2)):
                yield word.start(), last.end(), text


@lru_cache(maxsize=256)
def _values(database: Path) -> Mapping[str, Mapping[str, str]]:
    """The texts of a database in lower case, each with its columns and how it is written there."""
    known: dict[str, dict[str, str]] = {}
    uri = f"{database.resolve().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for table in read(database):
            for column in table.columns:
                own, name = f"{quoted(table.name.lower())}.{quoted(column.name.lower())}", quoted(column.name)
                rows = connection.execute(
                    f"SELECT DISTINCT {name} FROM {quoted(table.name)} "
                    f"WHERE typeof({name}) = 'text' AND length({name}) <= {CHARS} LIMIT {DISTINCT}"
                )
                for (value,) in rows:
                    columns = known.setdefault(value.lower(), {})
                    if len(columns) < COLUMNS:
                        columns.setdefault(own, "'" + value.replace("'", "''") + "'")
    return known
