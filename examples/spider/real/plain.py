"""A gold query in its plain form: what a small model is taught to write.

Keywords and names are in lower case, tables go by their own names instead of T1 and T2, values are in single
quotes, and spaces are where they are needed; RESDSQL teaches such queries too (arXiv:2302.05965).
Invariant: a plain query answers as the one that it was made of (``matching``), or it is that one, with its
spaces folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from spider.sql.matching import match
from spider.sql.schema import quoted, read
from spider.sql.tokens import Token, meaningful, trimmed

_TIGHT = {".", "(", ")", ",", ";"}
_CLOSED = {"count", "sum", "avg", "min", "max", "abs", "round", "length", "upper", "lower", "substr", "cast"}
"""Functions, whose parenthesis follows without a space."""


@lru_cache(maxsize=8192)
def plain(query: str, database: Path) -> str:
    """Return the plain form of a gold query over ``database``."""
    parts = meaningful(trimmed(query))
    shortened = _without_aliases([_lower(part, schema_names(database)) for part in parts])
    text = written(shortened)
    if match(query, text, [database]).reward == 1.0:
        return text
    return " ".join(trimmed(query).split())


@lru_cache(maxsize=256)
def schema_names(database: Path) -> frozenset[str]:
    """Return the names of all tables and columns of a database, in lower case."""
    return frozenset(
        name.lower()
        for table in read(database)
        for name in (table.name, *(column.name for column in table.columns))
    )


def tables_in(query: str, database: Path) -> list[str]:
    """Return the tables that a plain query reads, in the order of the schema."""
    parts = meaningful(query)
    said = {
        after.text.strip('"') for part, after in pairwise(parts) if part.says("FROM") or part.says("JOIN")
    }
    return [table.name.lower() for table in read(database) if table.name.lower() in said]


def _lower(part: Token, names: Iterable[str]) -> Token:
    """A token in lower case; a value in double quotes becomes a string, as SQLite takes it."""
    if part.kind != "name":
        return part
    bare = part.text.strip('"`')
    if part.text[0] in '"`':
        if bare.lower() in names:
            return Token("name", quoted(bare.lower()))
        return Token("string", "'" + bare.replace('""', '"').replace("'", "''") + "'")
    return Token("name", part.text.lower())


def _without_aliases(parts: Sequence[Token]) -> list[Token]:
    """Put tables in the place of their aliases, unless two tables share one or a table has two."""
    aliases: dict[str, set[str]] = {}
    dropped: set[int] = set()
    for place, part in enumerate(parts[:-2]):
        if part.text in ("from", "join", ",") and parts[place + 1].kind == "name":
            at = place + 3 if parts[place + 2].text == "as" else place + 2
            named = at == place + 3 and at < len(parts) and parts[at].kind == "name"
            if named:
                aliases.setdefault(parts[at].text, set()).add(parts[place + 1].text)
                dropped |= {at - 1, at}
    tables = [next(iter(found)) for found in aliases.values() if len(found) == 1]
    if len(tables) != len(aliases) or len(set(tables)) != len(tables):
        return list(parts)
    own: Mapping[str, str] = dict(zip(aliases, tables, strict=True))
    return [
        Token(part.kind, own.get(part.text, part.text)) if _qualifies(parts, place) else part
        for place, part in enumerate(parts)
        if place not in dropped
    ]


def _qualifies(parts: Sequence[Token], place: int) -> bool:
    return place + 1 < len(parts) and parts[place + 1].text == "."


def written(parts: Sequence[Token]) -> str:
    """Return tokens as text: no space inside parentheses, before a comma or around a dot."""
    text = ""
    before = ""
    for part in parts:
        tight = (
            not text
            or before in ("(", ".")
            or part.text in (".", ")", ",", ";")
            or (part.text == "(" and before in _CLOSED)
        )
        text += part.text if tight else f" {part.text}"
        before = part.text
    return text
