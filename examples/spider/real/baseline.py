"""What can be reached without a model: the gold query of the most similar training question, renamed.

Every training question whose query reads one table can lend its query. The most similar one does: 0.7 times
the Jaccard index of the words that are among the 400 most frequent, 0.3 times that of all words, and 0.2 more
if either both compare with a text, or neither. The query's table becomes the table whose name shares most
runs of three letters with the question, and a little more if it holds a value that the question names; its
columns become, in turn, those columns of that table that share most of the others; texts become values that
the question names, in their own columns, or what it quotes, and numbers its numbers. It knows nothing else of
SQL. These weights are the best of thirteen variants on the selection databases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from spider.databases import databases_of
from spider.questions import Question
from spider.real.plain import plain, schema_names, tables_in, written
from spider.real.values import conditions
from spider.sql.matching import match
from spider.sql.schema import quoted, read
from spider.sql.tokens import Token, meaningful

FREQUENT, FREQUENT_SHARE, TEXT_BONUS, VALUE_BONUS = 400, 0.7, 0.2, 0.3
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\b\d+(?:\.\d+)?\b")
_CONDITION = re.compile(r"(.+?)\.(.+?) = ('(?:[^']|'')*')")


class Lender(NamedTuple):
    """A training question that can lend its query."""

    words: frozenset[str]
    texts: bool
    """Whether its query holds a text."""
    question: Question


def rewards(tasks: Sequence[Question], train: Sequence[Question]) -> dict[str, float]:
    """Return what the baseline earns for each task, by id; ``train`` is what it copies from."""
    lenders = [lender for one in train if (lender := _lender(one)) is not None]
    counts = Counter(word for lender in lenders for word in sorted(lender.words))
    frequent = frozenset(word for word, _ in counts.most_common(FREQUENT))
    found = {}
    for task in tasks:
        asked, texts = _words(task["question"]), bool(_conditions(task))
        best = max(
            lenders,
            key=lambda one: (
                FREQUENT_SHARE * _jaccard(one.words & frequent, asked & frequent)
                + (1 - FREQUENT_SHARE) * _jaccard(one.words, asked)
                + TEXT_BONUS * (one.texts == texts)
            ),
        )
        query = adapted(best.question, task)
        found[task["id"]] = match(task["query"], query, databases_of(task)).reward
    return found


def adapted(lender: Question, task: Question) -> str:
    """Return the query of ``lender`` with the names and values of ``task``."""
    question, there = task["question"], databases_of(lender)[0]
    tables = {
        table.name.lower(): [c.name.lower() for c in table.columns] for table in read(databases_of(task)[0])
    }
    asked, named = _grams(question), _conditions(task)
    holds = {table for table, _, _ in named}
    table = max(tables, key=lambda name: _shared(name, asked) + VALUE_BONUS * (name in holds))
    columns = sorted(tables[table], key=lambda name: -_shared(name, asked - _grams(table)))
    texts = [(column, value) for own, column, value in named if own == table]
    values = [value.strip("\"'") for value in _VALUE.findall(question)]
    old = schema_names(there)
    query = plain(lender["query"], there)
    names = {tables_in(query, there)[0]: table}
    parts: list[Token] = []
    for part in meaningful(query):
        name = part.text.strip('"')
        if part.kind == "name" and name in old:
            if name not in names:
                names[name] = columns[(len(names) - 1) % len(columns)]
            part = Token("name", quoted(names[name]))
        elif part.kind == "string" and texts:
            column, value = texts.pop(0)
            part = Token("string", value)
            if len(parts) > 1 and parts[-2].kind == "name":
                parts[-2] = Token("name", quoted(column))
        elif part.kind in ("string", "number") and values:
            value = values.pop(0)
            part = Token(part.kind, f"'{value}'" if part.kind == "string" else value)
        parts.append(part)
    return written(parts)


def _lender(one: Question) -> Lender | None:
    database = databases_of(one)[0]
    query = plain(one["query"], database)
    if len(tables_in(query, database)) != 1:
        return None
    texts = any(part.kind == "string" for part in meaningful(query))
    return Lender(_words(one["question"]), texts, one)


def _conditions(task: Question) -> list[tuple[str, str, str]]:
    """Tables, columns and values of what a question names."""
    said = [part for one in conditions(databases_of(task)[0], task["question"]) for part in one.split(" or ")]
    parts = [held.groups() for one in said if (held := _CONDITION.fullmatch(one))]
    return [(table.strip('"'), column.strip('"'), value) for table, column, value in parts]


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / (len(one | other) or 1)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", text.lower()))


@cache
def _grams(text: str) -> frozenset[str]:
    letters = re.sub(r"[^a-z]", "", text.lower())
    return frozenset(letters[at : at + 3] for at in range(len(letters) - 2))


def _shared(name: str, asked: frozenset[str]) -> float:
    """Runs of three letters that a name has in common with those ``asked``, of one more than it has."""
    return len(_grams(name) & asked) / (len(_grams(name)) + 1)
