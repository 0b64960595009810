"""The one connection to a SQLite file, opened to write or to read, at the current schema version."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Executable, Table

from agentlightning.store.base import StoreError
from agentlightning.store.sql import database, schema
from agentlightning.store.sql.statements import statement_of
from agentlightning.store.sqlite.file import versions
from agentlightning.store.sqlite.file.lock import FileLock

_PAGE = 16384
"""Bytes in a page of the file. A call takes about 3 kB: a page of 4 kB would hold only one call."""
_CACHE = 16 << 20
"""Bytes of pages kept in memory."""


_LOOK_SECONDS = 0.2
"""Seconds between two reads of a file that another process writes, which sends no signal."""


class SQLiteDatabase(database.Database):
    """The connection to a file: it writes, or with ``read_only`` reads while another process writes."""

    def __init__(
        self,
        path: str | Path,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        read_only: bool = False,
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
            versions.prepare(connection)
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        if self.path is None or not self.path.is_file():
            raise StoreError("there is no such file to read")
        connection = _sqlite(f"{self.path.as_uri()}?mode=ro", uri=True)
        with _closed_on_error(connection):
            version = versions.version_of(connection)
            if version is None:
                raise StoreError("the file holds no store yet")
            schema.refuse_other(version)
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

    def size_bytes(self) -> int:
        """Return the size of the database in bytes, without the write-ahead log."""
        return self._pragma("page_count") * self._pragma("page_size")

    def free_bytes(self) -> int:
        """Return the bytes of free pages, which are used before the file grows."""
        return self._pragma("freelist_count") * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        return int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])

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
