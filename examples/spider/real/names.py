"""Constrained decoding by the schema's names: patterns of what a small model may write.

Engine and trainer make the same masks from a pattern, so that a call under it is trained exactly. A pattern
holds a query to words that there are: keywords, functions, columns of the tables that were linked, a column
behind a table's name only if the table has it, and a linked table after FROM and JOIN. It knows no grammar of
SQL, nor which of the linked tables a query reads: the database still refuses some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from spider.real.prompts import columns_of
from spider.sql.schema import quoted, read

WORDS = (
    "select", "distinct", "on", "where", "group by", "having", "order by", "asc",
    "desc", "limit", "and", "or", "not", "in", "like", "between", "is", "null", "union", "intersect",
    "except", "as", "count", "sum", "avg", "min", "max", "abs", "round", "length", "cast", "real", "float",
    "integer",
)  # fmt: skip
"""Keywords and functions of plain queries. ``t1`` to ``t4`` are the aliases of a table that is read twice."""
_BETWEEN = r"[ (),<>=!+*/%-]+"
_TABLE = re.compile(r'("[^"]*"|\w+)(?:\([^)]*\))?(?:, |$)')
_STRING, _NUMBER = r"'(?:[^'\n]|'')*'", r"[0-9]+(?:\.[0-9]+)?"


@lru_cache(maxsize=4096)
def query_pattern(database: Path, link: str = "") -> str:
    """Return the pattern of a query over the tables of ``database`` that the answer ``link`` names, or over
    all if it names none, for ``guided_regex``.
    """
    every = {table.name.lower(): [c.name.lower() for c in table.columns] for table in read(database)}
    linked = {part.strip('"') for part in _TABLE.findall(link)}
    tables = {table: own for table, own in every.items() if table in linked} or every
    columns = sorted({column for own in tables.values() for column in own})
    qualified = [rf"{_name(table)}\.(?:{_any(own)})" for table, own in tables.items()]
    aliased = rf"t[1-4]\.(?:{_any(columns)})"
    source = rf"(?:from|join|left join) (?:(?:{_any(tables)})(?: as t[1-4])?|\(select)"
    words = [*WORDS, source, _any(columns), *qualified, aliased, _STRING, _NUMBER]
    return rf"select(?:{_BETWEEN}(?:{'|'.join(words)}))*(?:\(\*)?\)*"


@lru_cache(maxsize=256)
def tables_pattern(database: Path) -> str:
    """Return the pattern of a list of tables of ``database`` with columns."""
    tables = []
    for table in read(database):
        columns = "|".join(map(re.escape, columns_of(table)))
        tables.append(rf"{_name(table.name.lower())}(?:\((?:{columns})(?:, (?:{columns}))*\))?")
    return f"(?:{'|'.join(tables)})(?:, (?:{'|'.join(tables)}))*"


def _any(names: Iterable[str]) -> str:
    return "|".join(map(_name, names))


def _name(name: str) -> str:
    return re.escape(quoted(name))
