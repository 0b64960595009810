"""The store in one SQLite file: embedded, durable, the default. This is the file's one connection, opened to
write or to read, at the current schema version, and the store over it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Executable, Table
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from agentlightning.store.base import StoreError
from agentlightning.store.places import home, store_place
from agentlightning.store.sql.core import StoreCache
from agentlightning.store.sql.database import Database, statement_of
from agentlightning.store.sql.expiry import begin_limits, ensure_timer
from agentlightning.store.sql.schema import SCHEMA_VERSION, creation, refuse_other
from agentlightning.store.sql.store import SQLStore
from agentlightning.store.sql.waiting import Waiters, monotonic_clock
from agentlightning.store.sqlite.lock import FileLock
from agentlightning.store.sqlite.writer import SQLiteWriter

_PAGE = 16384
"""Bytes in a page of the file. A call takes about 3 kB: a page of 4 kB would hold only one call."""
_CACHE = 16 << 20
"""Bytes of pages kept in memory."""
_LOOK_SECONDS = 0.2
"""Seconds between two reads of a file that another process writes, which sends no signal."""


class SQLiteDatabase(Database):
    """The connection to a file: it writes, or with ``read_only`` reads while another process writes."""

    def __init__(
        self, path: str | Path, synchronous: Literal["NORMAL", "FULL"] = "NORMAL", read_only: bool = False
    ) -> None:
        if sqlite3.sqlite_version_info < (3, 35):
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: the store needs 3.35 or newer")
        if synchronous not in ("NORMAL", "FULL"):
            raise ValueError(f"synchronous must be NORMAL or FULL, not {synchronous!r}")
        self.path = None if str(path) == ":memory:" else Path(path).expanduser().absolute()
        self.read_only = read_only
        self.look_seconds = _LOOK_SECONDS if read_only else None
        self.lock: FileLock | None = None
        if self.path is not None and not read_only:
            self._claim(self.path)
        try:
            self.connection = self._open_to_read() if read_only else self._open_to_write(synchronous)
        except BaseException as error:
            self._unlock()
            if isinstance(error, sqlite3.DatabaseError):
                raise StoreError(
                    f"{self.path} cannot be opened as a store: {error}. If the file is damaged, move it away "
                    "(with its -wal and -shm files) and restore a copy"
                ) from error
            if isinstance(error, StoreError):
                raise StoreError(f"{self.path}: {error}") from None
            raise
        self._opened_file = self._file_id()

    def _claim(self, path: Path) -> None:
        """Make the folder, lock the file, and make the file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreError(f"the store's folder cannot be made: {error}; choose another place") from None
        self.lock = FileLock(path)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # resources may hold keys

    def _file_id(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the path; ``None``: no such file, or a store in memory."""
        try:
            found = None if self.path is None else os.stat(self.path)
        except OSError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

    def check_file(self) -> None:
        """Raise :class:`StoreError` if the file was deleted or replaced since it was opened. SQLite would go
        on writing to a file that no process can open again.
        """
        if self._file_id() != self._opened_file:
            raise StoreError(
                f"{self.path} was deleted or replaced while the store was open: nothing more is stored. "
                "Put the file back, or start a new run"
            )

    def _open_to_write(self, synchronous: str) -> sqlite3.Connection:
        connection = _sqlite(":memory:" if self.path is None else self.path)
        with _closed_on_error(connection):
            connection.execute(f"PRAGMA page_size = {_PAGE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
            connection.execute(f"PRAGMA cache_size = {-_CACHE >> 10}")
            connection.execute("PRAGMA temp_store = MEMORY")
            _prepare(connection)
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        if self.path is None or not self.path.is_file():
            raise StoreError("there is no such file to read")
        connection = _sqlite(f"{self.path.as_uri()}?mode=ro", uri=True)
        with _closed_on_error(connection):
            version = _version_of(connection)
            if version is None:
                raise StoreError("the file holds no store yet")
            refuse_other(version)
        return connection

    def require_writable(self) -> None:
        """Raise :class:`StoreError` if the file is open read-only."""
        if self.read_only:
            raise StoreError(
                f"{self.path} was opened read-only, so nothing can be written. Open it without read_only, or "
                "use the URL of the process that writes it"
            )

    def _run(self, source: Executable, values: dict[str, Any]) -> sqlite3.Cursor:
        text, constants = statement_of(source)
        return self.connection.execute(text, {**constants, **values})

    def _run_many(self, source: Executable, rows: list[dict[str, Any]]) -> None:
        text, _ = statement_of(source)
        self.connection.executemany(text, rows)

    def lock_rollouts(self, rollout_ids: Iterable[str]) -> None:
        """Do nothing: one process writes the file, one transaction at a time."""

    def keep_order(self, table: Table) -> None:
        """Do nothing, for the same reason."""

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the database without the write-ahead log, and those of its free pages."""
        names = ("page_size", "page_count", "freelist_count")
        size, pages, free = (int(self.connection.execute(f"PRAGMA {n}").fetchone()[0]) for n in names)
        return size * pages, size * free

    def close(self) -> None:
        """Close the file and release its lock. The last close copies the write-ahead log into the file."""
        self.connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None


def _sqlite(database: str | Path, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(database, isolation_level=None, check_same_thread=False, uri=uri)


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _version_of(connection: sqlite3.Connection) -> int | None:
    """Return the schema version of a file; ``None``: an empty file."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
            raise StoreError(
                "this SQLite file belongs to another program: it has tables, but no table 'meta'"
            )
        return None
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None:
        raise StoreError("this SQLite file has a table 'meta' without a schema_version: not a store of ours")
    if not re.fullmatch("[1-9][0-9]{0,8}", str(row[0])):
        raise StoreError(
            f"this SQLite file has the schema_version {row[0]!a:.40}: not a store of ours, or damaged"
        )
    return int(row[0])


@cache
def _creation() -> tuple[str, ...]:
    """Return the SQL of all tables and indices. To compile it takes longer than to run it."""
    return tuple(creation(sqlite_dialect()))


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty file. Raise :class:`StoreError` for a file of another schema version."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version_of(connection)
        if version is None:
            for statement in _creation():
                connection.execute(statement)
            made = "INSERT INTO meta (key, value) VALUES ('schema_version', ?)"
            connection.execute(made, (str(SCHEMA_VERSION),))
        else:
            refuse_other(version)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


# ------------------------------------------------------------------------------------------------------ store
def store_file(place: str | Path | None = None) -> Path | Literal[":memory:"]:
    """Return the file at a place; ``None``: ``AGL_STORAGE``, else ``~/.agent-lightning``."""
    place = place if place is not None else store_place() or home("AGL_STORAGE") / ".agent-lightning"
    text = str(place)
    if text in (":memory:", "sqlite://", "sqlite:///:memory:"):
        return ":memory:"
    if text.startswith("sqlite:///"):
        text = text.removeprefix("sqlite:///")
    elif "://" in text:
        raise StoreError(f"{text} is not a file: use open_store({text!r})")
    path = Path(text).expanduser()
    is_folder = path.is_dir() or (not path.exists() and path.suffix == "")
    return path / "store.sqlite" if is_folder else path


class SQLiteStore(SQLStore):
    """All of :class:`~agentlightning.store.base.Store`, in one SQLite file.

    One process writes a file, and holds its lock (:mod:`.lock`); with ``read_only`` any number of
    processes read it meanwhile.

    ``path``: file, folder, ``sqlite:///…`` or ``:memory:``; ``None``: ``AGL_STORAGE``, else
    ``~/.agent-lightning/store.sqlite``. ``synchronous``: ``NORMAL`` survives kill -9, ``FULL`` power loss
    too. ``clock`` returns seconds since the epoch; the default reads the wall clock once
    (:mod:`..sql.waiting`).

    Coroutines may be awaited from any loop or thread: the loop that used the store first does the work, and
    must not be blocked meanwhile.
    """

    db: SQLiteDatabase
    writer: SQLiteWriter

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        read_only: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        db, cache = SQLiteDatabase(store_file(path), synchronous, read_only), StoreCache()
        writer = SQLiteWriter(db.connection, cache.clear, db.check_file, snapshots=read_only)
        super().__init__(db, writer, clock or monotonic_clock(), cache, Waiters())
        if not read_only:
            begin_limits(self)
            # attempts of an earlier process end without being asked for
            self.writer.took_loop = lambda: ensure_timer(self)

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.db.path or ':memory:')!r})"

    async def close(self) -> None:
        """Commit, close the file and release its lock. A second call does nothing."""
        if not self.writer.closed:
            await self.writer.on_writer_loop(self._shut)

    async def _shut(self) -> None:
        self.waiters.wake_all()
        self.timer.stop()
        self.watch.stop()
        self.writer.close()
        self.db.close()
