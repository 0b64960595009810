"""Run one query on one SQLite file: read-only, in bounded time and memory, whatever the text says.

Invariant: the file, the file system and the connection are the same before and after. Only a single SELECT
(or WITH, VALUES) is run: an authorizer refuses all that is no reading, so neither ATTACH, PRAGMA nor a write
gets as far as a plan. Time is bounded twice: by the clock, and by the number of virtual machine operations,
which is the same on every machine. SQLite asks the authorizer while it plans and the progress handler while
it runs; both look at the clock, so that a query that takes long to plan is stopped as well.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from spider.sql.tokens import trimmed, unfolded

Value = int | float | str | bytes | None
Row = tuple[Value, ...]

BETWEEN = 50
"""Virtual machine operations between two looks at the clock: one operation may be a slow function."""
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN_FUNCTIONS = {
    "edit",
    "format",
    "fts3_tokenizer",
    "load_extension",
    "printf",
    "random",
    "randomblob",
    "readfile",
    "writefile",
    "zeroblob",
}
"""They reach out of the database, answer differently each time, or work as long as one number says."""


class SqlError(Exception):
    """A query that was not run to its end. The text is for the one who wrote the query."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may use. The gold queries of the data need 20,000 operations and 500 rows at most."""

    seconds: float = 5.0
    operations: int = 20_000_000
    """Virtual machine operations, a few seconds of one core."""
    rows: int = 10_000
    size: int = 4_000_000
    """Bytes of all values together, roughly."""
    value: int = 30_000
    """Bytes of one value: the slowest functions take time that is quadratic in it."""
    length: int = 20_000
    """Bytes of the query's text."""
    subqueries: int = 500
    """Copies of WITH clauses that are planned: planning takes memory for each, and nothing can stop it."""


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of a query, all of them."""

    columns: tuple[str, ...]
    rows: list[Row]


def run(database: Path, sql: str, limits: Limits = LIMITS) -> Result:
    """The result of ``sql``; :class:`SqlError` says why there is none.

    Blocks for up to ``limits.seconds``: call it in a thread from a coroutine. Text that is not UTF-8 comes
    with replacement characters. ``FileNotFoundError`` if there is no such file: that is no fault of the
    query.
    """
    if not database.is_file():
        raise FileNotFoundError(f"there is no database {database}")
    sql = trimmed(sql) if len(sql) <= limits.length else sql
    if len(sql) <= limits.length and "with" in sql.lower() and unfolded(sql) > limits.subqueries:
        raise SqlError(f"its WITH clauses stand for more than {limits.subqueries} subqueries")
    watch = _Watch(limits)
    with closing(_open(database, limits)) as connection:
        connection.set_authorizer(watch.authorize)
        connection.set_progress_handler(watch.progress, BETWEEN)
        try:
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise SqlError("there is no statement to run")
            rows = _fetch(cursor, limits)
        except UnicodeEncodeError:
            raise SqlError("the text holds half of a surrogate pair") from None
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            raise SqlError(watch.reason or _told(error)) from None
        return Result(tuple(column[0] for column in cursor.description), rows)


def _open(database: Path, limits: Limits) -> sqlite3.Connection:
    uri = f"{database.resolve().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.value),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.length),
        (sqlite3.SQLITE_LIMIT_COLUMN, 500),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 250_000),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(limit, value)
    connection.execute("PRAGMA temp_store = MEMORY")  # sorting writes no files either
    return connection


def _fetch(cursor: sqlite3.Cursor, limits: Limits) -> list[Row]:
    rows: list[Row] = []
    size = 0
    for row in cursor:
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if len(rows) == limits.rows:
            raise SqlError(f"the result has more than {limits.rows} rows")
        if size > limits.size:
            raise SqlError(f"the result has more than {limits.size} bytes")
        rows.append(row)
    return rows


class _Watch:
    """Looks at what a statement does and for how long; says no by a return value, and keeps why."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.deadline = time.monotonic() + limits.seconds
        self.operations = 0
        self.reason: str | None = None

    def authorize(
        self, action: int, first: str | None, second: str | None, schema: str | None, source: str | None
    ) -> int:
        if action not in _READING:
            self.reason = "not allowed: only one statement that reads, a SELECT, is run"
        elif action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
            self.reason = f"not allowed: the function {second}"
        elif time.monotonic() > self.deadline:
            self.reason = f"the query took more than {self.limits.seconds:g} seconds to plan"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def progress(self) -> int:
        self.operations += BETWEEN
        if self.operations > self.limits.operations:
            self.reason = "the query does too much work (more than "
            self.reason += f"{self.limits.operations:,} operations)"
        elif time.monotonic() > self.deadline:
            self.reason = f"the query took more than {self.limits.seconds:g} seconds"
        else:
            return 0
        return 1


def _told(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if "one statement at a time" in text:
        return "not allowed: only one statement is run"
    return text
