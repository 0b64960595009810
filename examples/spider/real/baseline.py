"""What can be reached without a model: the gold query of the most similar training question, renamed.

The training question with the most words in common (Jaccard index of all words) lends its query, if that
reads one table. Its table becomes the table whose name shares most runs of three letters with the question;
its columns become, in turn, those columns of that table that share most of the others; numbers and strings
become the question's. It knows nothing else of SQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from spider.databases import databases_of
from spider.questions import Question
from spider.real.plain import plain, schema_names, tables_in, written
from spider.sql.matching import match
from spider.sql.schema import quoted, read
from spider.sql.tokens import Token, meaningful

_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\b\d+(?:\.\d+)?\b")


def rewards(tasks: Sequence[Question], train: Sequence[Question]) -> dict[str, float]:
    """Return what the baseline earns for each task, by id; ``train`` is what it copies from."""
    lenders = [
        (_words(one["question"]), one)
        for one in train
        if len(tables_in(plain(one["query"], databases_of(one)[0]), databases_of(one)[0])) == 1
    ]
    found = {}
    for task in tasks:
        asked = _words(task["question"])
        _, lender = max(lenders, key=lambda one: len(one[0] & asked) / len(one[0] | asked))
        found[task["id"]] = match(task["query"], adapted(lender, task), databases_of(task)).reward
    return found


def adapted(lender: Question, task: Question) -> str:
    """Return the query of ``lender`` with the names and values of ``task``."""
    question, there = task["question"], databases_of(lender)[0]
    tables = {
        table.name.lower(): [c.name.lower() for c in table.columns] for table in read(databases_of(task)[0])
    }
    asked = _grams(question)
    table = max(tables, key=lambda name: _shared(name, asked))
    columns = sorted(tables[table], key=lambda name: -_shared(name, asked - _grams(table)))
    values = [value.strip("\"'") for value in _VALUE.findall(question)]
    old = schema_names(there)
    query = plain(lender["query"], there)
    names = {tables_in(query, there)[0]: table}
    parts = []
    for part in meaningful(query):
        name = part.text.strip('"')
        if part.kind == "name" and name in old:
            if name not in names:
                names[name] = columns[(len(names) - 1) % len(columns)]
            part = Token("name", quoted(names[name]))
        elif part.kind in ("string", "number") and values:
            value = values.pop(0)
            part = Token(part.kind, f"'{value}'" if part.kind == "string" else value)
        parts.append(part)
    return written(parts)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", text.lower()))


@cache
def _grams(text: str) -> frozenset[str]:
    letters = re.sub(r"[^a-z]", "", text.lower())
    return frozenset(letters[at : at + 3] for at in range(len(letters) - 2))


def _shared(name: str, asked: frozenset[str]) -> float:
    """Runs of three letters that a name has in common with those ``asked``, of one more than it has."""
    return len(_grams(name) & asked) / (len(_grams(name)) + 1)
