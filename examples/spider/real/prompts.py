"""What the agent of a small pretrained model says: the schema in its shortest form, and one conversation.

    system     concert(concert_id, title, stadium_id>stadium)
               stadium(stadium_id, name, capacity)
    user       Where was the concert Live?
               concert.title = 'Live'                               values that the question names
    assistant  concert(title, stadium_id>stadium), stadium(stadium_id, name)    link: which columns?
    user       sql
    assistant  select name from concert join stadium on …           write
    user       ambiguous column name: stadium_id
               concert(concert_id, title, stadium_id>stadium)
               stadium(stadium_id, name, capacity)
    assistant  select stadium.name from concert join …              rewrite

Each prompt begins with the one before it, and all questions about a database begin with its schema: engine
and trainer compute these beginnings once.

The rule by which a schema is cut: while it is longer than ``CHARS``, the widest table loses its last column
that is no foreign key (of several tables the last one); a table that lost columns ends in "...".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from spider.prompts import Messages
from spider.real.plain import tables_in
from spider.real.values import conditions
from spider.sql.schema import Table, quoted, read
from spider.sql.tokens import meaningful

CHARS = 900
"""Characters of a schema: nine tenths of the questions are about databases that need less."""
WRITE = "sql"
NO_ROWS = "no rows"
"""What the model is told of a query that ran and returned nothing."""
ERROR_CHARS, TABLES_CHARS = 60, 300
"""Characters that the model is shown of a database's error, and of the tables that the query reads."""


@lru_cache(maxsize=256)
def schema_of(database: Path, chars: int = CHARS) -> str:
    """Return the schema in at most ``chars`` characters where the rule can reach that."""
    tables = read(database)
    columns = [columns_of(table) for table in tables]
    cut: set[int] = set()
    while len(text := _text(tables, columns, cut)) > chars:
        free = [i for i, own in enumerate(columns) if any(">" not in one for one in own[1:])]
        if not free:
            return text
        widest = max(free, key=lambda i: (len(columns[i]), i))
        own = columns[widest]
        del own[max(i for i, one in enumerate(own) if ">" not in one)]
        cut.add(widest)
    return text


def _text(tables: Sequence[Table], columns: Sequence[Sequence[str]], cut: set[int]) -> str:
    return "\n".join(
        f"{quoted(table.name.lower())}({', '.join([*own, *(['...'] if i in cut else [])])})"
        for i, (table, own) in enumerate(zip(tables, columns, strict=True))
    )


def columns_of(table: Table) -> list[str]:
    """Return a table's columns as the schema shows them: foreign keys with the table that they point to, and
    its column if that has another name.
    """
    links = {own.lower(): (other.lower(), column.lower()) for own, other, column in table.links}
    found = []
    for column in table.columns:
        name = column.name.lower()
        text = quoted(name)
        if name in links:
            other, key = links[name]
            text += f">{quoted(other)}" + ("" if key == name else f".{quoted(key)}")
        found.append(text)
    return found


def names_in(schema: str) -> frozenset[str]:
    """Return the names of tables and columns that a schema shows."""
    return frozenset(part.text.strip('"') for part in meaningful(schema) if part.kind == "name")


def linked(query: str, database: Path) -> str:
    """Return the tables that a plain query reads, each with those of its columns that the query names, as the
    schema shows them. A name without a table is that of every table which has such a column.
    """
    tables = tables_in(query, database)
    parts = meaningful(query)
    named: set[tuple[str | None, str]] = set()
    for place, part in enumerate(parts):
        if part.kind == "name":
            own = parts[place - 2].text.strip('"') if place > 1 and parts[place - 1].text == "." else None
            named.add((own if own in tables else None, part.text.strip('"')))
    found = []
    for table in read(database):
        name = table.name.lower()
        if name in tables:
            columns = [
                text
                for column, text in zip(table.columns, columns_of(table), strict=True)
                if {(None, column.name.lower()), (name, column.name.lower())} & named
            ]
            found.append(quoted(name) + (f"({', '.join(columns)})" if columns else ""))
    return ", ".join(found)


def opening(database: Path, question: str) -> Messages:
    """Return the conversation in which the tables and columns of a question are asked for."""
    said = "\n".join([question, *conditions(database, question)])
    return [{"role": "system", "content": schema_of(database)}, {"role": "user", "content": said}]


def answered(before: Messages, answer: str, then: str) -> Messages:
    """Return a conversation that goes on after the model's ``answer``."""
    return [*before, {"role": "assistant", "content": answer}, {"role": "user", "content": then}]


EXAMPLE: Messages = [
    {"role": "system", "content": "pet(pet_id, kind, owner_id>owner)\nowner(owner_id, name, city)"},
    {"role": "user", "content": "Who owns a dog?\npet.kind = 'dog'"},
    {"role": "assistant", "content": "pet(kind, owner_id>owner), owner(owner_id, name)"},
    {"role": "user", "content": WRITE},
    {
        "role": "assistant",
        "content": "select owner.name from pet join owner on pet.owner_id = owner.owner_id "
        "where pet.kind = 'dog'",
    },
]
"""A solved question about an invented database."""


def complaint(error: str, query: str, database: Path) -> str:
    """Return what the model is told of a query that failed: the error, and the tables that it reads."""
    tables = {quoted(name) for name in tables_in(query, database)}
    lines = [line for line in schema_of(database).splitlines() if line.partition("(")[0] in tables]
    shown = "\n".join(lines)
    return " ".join(error.split())[:ERROR_CHARS] + (
        f"\n{shown}" if lines and len(shown) <= TABLES_CHARS else ""
    )
