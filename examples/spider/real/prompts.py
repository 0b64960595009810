"""What the agent of a small pretrained model says: the schema in its shortest form, and one conversation.

    system     concert(concert_id, name, stadium_id>stadium)
               stadium(stadium_id, name, capacity)
    user       Where was the concert Live?
    assistant  concert, stadium                                     link: which tables?
    user       sql
    assistant  select stadium.name from concert join …              write
    user       no such column: concert.title
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
from spider.sql.schema import Table, quoted, read
from spider.sql.tokens import meaningful

CHARS = 900
"""Characters of a schema: nine tenths of the questions are about databases that need less."""
WRITE = "sql"
ERROR_CHARS = 60
"""Characters of a database's error that the model is shown."""


@lru_cache(maxsize=256)
def schema_of(database: Path, chars: int = CHARS) -> str:
    """Return the schema in at most ``chars`` characters where the rule can reach that."""
    tables = read(database)
    columns = [_columns(table) for table in tables]
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


def _columns(table: Table) -> list[str]:
    """Return a table's columns, foreign keys with the table that they point to, and its column if that has
    another name.
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


def opening(schema: str, question: str) -> Messages:
    """Return the conversation in which the tables of a question are asked for."""
    return [{"role": "system", "content": schema}, {"role": "user", "content": question}]


def answered(before: Messages, answer: str, then: str) -> Messages:
    """Return a conversation that goes on after the model's ``answer``."""
    return [*before, {"role": "assistant", "content": answer}, {"role": "user", "content": then}]


EXAMPLE: Messages = [
    *answered(
        opening("pet(pet_id, kind, owner_id>owner)\nowner(owner_id, name, city)", "Who owns a dog?"),
        "pet, owner",
        WRITE,
    ),
    {
        "role": "assistant",
        "content": "select owner.name from pet join owner on pet.owner_id = owner.owner_id "
        "where pet.kind = 'dog'",
    },
]
"""A solved question about an invented database."""


def complaint(error: str) -> str:
    """Return what the model is told of a query that failed."""
    return " ".join(error.split())[:ERROR_CHARS]
