"""Small changes of gold queries: most are wrong, some are right, some do not run. The seed decides.

Each change is one a model may make: another column or table, another comparison or aggregate, a clause left
out, columns in another order, a detour that changes nothing.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator, Sequence

SWAPS = [
    (r"(?i)\basc\b", "DESC"),
    (r"(?i)\bdesc\b", "ASC"),
    (r"(?i)\bdesc\b", ""),
    (r"(?i)\bdistinct\b", ""),
    (r"(?i)\bselect\b", "SELECT DISTINCT"),
    (r"(?i)\bcount\s*\(\s*\*\s*\)", "count(DISTINCT 1)"),
    (r"(?i)\b(avg|sum|min|max)\b", "sum"),
    (r"(?i)\b(avg|sum|min|max)\b", "max"),
    (r"(?i)\bcount\b", "sum"),
    (r"(?i)\blimit\s+\d+", ""),
    (r"(?i)\blimit\s+\d+", "LIMIT 2"),
    (r"(?i)\border by\b.*$", ""),
    (r"(?i)\bgroup by\b.*$", ""),
    (r"(?i)\bhaving\b.*$", ""),
    (r"(?i)\bwhere\b.*$", ""),
    (r"(?i)\band\b", "OR"),
    (r"(?i)\bor\b", "AND"),
    (r"(?i)\bunion\b", "UNION ALL"),
    (r"(?i)\bintersect\b", "UNION"),
    (r"(?i)\bexcept\b", "INTERSECT"),
    (r"(?i)\bnot in\b", "IN"),
    (r"(?i)\bjoin\b", "LEFT JOIN"),
    (r">", "<"),
    (r"<", "> ="),
    (r"=", "! ="),
    (r"\b\d+\b", "0"),
    (r"'[^']*'", "NULL"),
    (r"'[^']*'", "'> = DISTINCT'"),
    (r"(?i)\bfrom\b", "FORM"),
]


def mutate(sql: str, columns: Sequence[str], rng: random.Random) -> str:
    """One or two changes of ``sql``; ``columns`` are the names its database has."""
    for _ in range(rng.choice((1, 1, 2))):
        sql = rng.choice((_swap, _swap, _swap, _column, _turn, _detour))(sql.rstrip("; \n"), columns, rng)
    return sql


def _swap(sql: str, columns: Sequence[str], rng: random.Random) -> str:
    fitting = [(pattern, text) for pattern, text in SWAPS if re.search(pattern, sql, re.DOTALL)]
    pattern, text = rng.choice(fitting)
    place = rng.choice(list(re.finditer(pattern, sql, re.DOTALL)))
    return sql[: place.start()] + text + sql[place.end() :]


def _column(sql: str, columns: Sequence[str], rng: random.Random) -> str:
    known = {name.lower() for name in columns}
    found = [m for m in re.finditer(r"\w+", sql) if m[0].lower() in known]
    if not found:
        return _swap(sql, columns, rng)
    place = rng.choice(found)
    return sql[: place.start()] + rng.choice(columns) + sql[place.end() :]


def _turn(sql: str, columns: Sequence[str], rng: random.Random) -> str:
    """The selected columns in another order, or one more, one twice, one less."""
    head = re.match(r"(?is)\s*select\s+(distinct\s+)?(.*?)\s+from\b", sql)
    if head is None or "(select" in head[2].lower().replace(" ", ""):
        return _detour(sql, columns, rng)
    parts = re.split(r"\s*,\s*(?![^()]*\))", head[2])
    rng.shuffle(parts)
    change = rng.randrange(4)
    if change == 1:
        parts.append(rng.choice(parts))
    elif change == 2:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice([*columns, "NULL", "1", "'1'", "1.0"]))
    elif change == 3 and len(parts) > 1:
        parts.pop()
    return f"SELECT {head[1] or ''}{', '.join(parts)} {sql[head.end() - 4 :]}"


def _detour(sql: str, columns: Sequence[str], rng: random.Random) -> str:
    return rng.choice(
        (
            f"SELECT * FROM ({sql})",
            f"SELECT * FROM ({sql}) ORDER BY 1",
            f"SELECT * FROM ({sql}) ORDER BY 1 DESC",
            f"SELECT * FROM ({sql}) WHERE 0",
            f"WITH w AS ({sql}) SELECT * FROM w",
            f"SELECT * FROM ({sql}) UNION ALL SELECT * FROM ({sql})",
            f"SELECT * FROM ({sql}) UNION SELECT * FROM ({sql})",
            f"SELECT *, 1 FROM ({sql})",
            f"{sql} LIMIT 0",
            f"{sql}; DROP TABLE {rng.choice(columns)}",
            f"{sql} -- DISTINCT > =",
            f"{sql};",
        )
    )


def stream(
    golds: Sequence[tuple[str, str]], columns: dict[str, Sequence[str]], seed: int
) -> Iterator[tuple[str, str, str]]:
    """Endless (database, gold, mutated), the golds in turn."""
    rng = random.Random(seed)
    while True:
        for name, gold in golds:
            yield name, gold, mutate(gold, columns[name], rng)


def columns_of(database: str) -> list[str]:
    """The names of all columns of a database."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    found = {row[1] for (name,) in tables for row in connection.execute(f'PRAGMA table_info("{name}")')}
    connection.close()
    return sorted(found)
