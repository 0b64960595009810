"""Answer a question from a database by plain code, where the words of the question spell out the query.

``plan`` writes one query over one table: a count of its rows, or some of its columns. It does so only if
every content word of the question is a word of the table, of the columns or of the form ("how many",
"different"); a question that says more (a condition, an order, an average) is not answered. So the code
answers few questions, and those that it answers it mostly answers right; the README has the figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from router.vocabulary import content_words, words
from spider.sql.execution import Result, SqlError, run
from spider.sql.schema import Table, quoted, read
from spider.sql.showing import show, show_error

CHARS, ROWS = 300, 5
"""Characters and rows of an answer."""
_COUNT = re.compile(r"\bhow many\b|\bnumber of\b|\bcount\b", re.IGNORECASE)
_DISTINCT = re.compile(r"\b(?:different|distinct|unique)\b", re.IGNORECASE)
_FORM = frozenset(["count", "different", "distinct", "unique", "total", "show", "available", "database"])
"""Content words that say how to answer, not what about."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What plain code finds in a database for a question."""

    matches: tuple[str, ...]
    """The tables and columns that the question names, as ``table`` and ``table.column``."""
    query: str | None
    """The query that answers the question; ``None``: it takes more than plain code can tell."""
    text: str
    """The answer as a person reads it."""


def answer(database: Path, question: str) -> Answer:
    """Open ``database`` read-only and answer ``question`` as far as ``plan`` can."""
    tables = read(database)
    found = matches(tables, question)
    query = plan(tables, question)
    if query is None:
        named = ", ".join(found) if found else "no table or column"
        return Answer(found, None, f"The question names {named}; this agent has no query for it.")
    try:
        result: Result = run(database, query)
    except SqlError as error:
        return Answer(found, query, show_error(error, CHARS))
    return Answer(found, query, show(result, CHARS, ROWS))


def matches(tables: tuple[Table, ...], question: str) -> tuple[str, ...]:
    """Return the tables and columns all of whose words stand in the question."""
    asked = words(question)
    found = []
    for table in tables:
        if _named(table.name, asked):
            found.append(table.name)
        found += [f"{table.name}.{column.name}" for column in table.columns if _named(column.name, asked)]
    return tuple(found)


def plan(tables: tuple[Table, ...], question: str) -> str | None:
    """Return the query that the words of ``question`` spell out; ``None`` unless just one table fits."""
    asked, counts = content_words(question) - _FORM, bool(_COUNT.search(question))
    queries = [query for table in tables if (query := _of_table(table, question, asked, counts))]
    return queries[0] if len(queries) == 1 else None


def _of_table(table: Table, question: str, asked: frozenset[str], counts: bool) -> str | None:
    """Return the query over ``table`` that uses up the words ``asked``, all of them."""
    about = words(table.name)
    if not about <= asked:
        return None
    columns = [column.name for column in table.columns if _named(column.name, asked - about)]
    if asked != about.union(*map(words, columns)):
        return None
    if counts:
        return None if columns else f"SELECT count(*) FROM {quoted(table.name)}"
    if not columns:
        return None
    places = {name: _place(question, name) for name in columns}
    listed = ", ".join(quoted(name) for name in sorted(columns, key=lambda name: places[name]))
    distinct = "DISTINCT " if _DISTINCT.search(question) else ""
    return f"SELECT {distinct}{listed} FROM {quoted(table.name)}"


def _place(question: str, name: str) -> int:
    """Return the place in the question of the first word that belongs to a name."""
    own = words(name)
    return next((m.start() for m in re.finditer(r"[A-Za-z]+", question) if words(m[0]) & own), len(question))


def _named(name: str, asked: frozenset[str]) -> bool:
    own = words(name)
    return bool(own) and own <= asked
