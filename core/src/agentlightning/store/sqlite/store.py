"""The store in one SQLite file: embedded, durable, the default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from agentlightning.store.base import StoreError
from agentlightning.store.places import home, store_place
from agentlightning.store.sql.cache import StoreCache
from agentlightning.store.sql.clock import monotonic_clock
from agentlightning.store.sql.store import SQLStore
from agentlightning.store.sql.waiters import Waiters
from agentlightning.store.sqlite.file.database import SQLiteDatabase
from agentlightning.store.sqlite.file.lock import holder_of
from agentlightning.store.sqlite.file.writer import SQLiteWriter


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

    One process writes a file, and holds its lock (:mod:`.file.lock`); with ``read_only`` any number of
    processes read it meanwhile.

    ``path``: file, folder, ``sqlite:///…`` or ``:memory:``; ``None``: ``AGL_STORAGE``, else
    ``~/.agent-lightning/store.sqlite``. ``synchronous``: ``NORMAL`` survives kill -9, ``FULL`` power loss
    too. ``clock`` returns seconds since the epoch; the default reads the wall clock once (:mod:`.clock`).

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
            self._begin_limits()
            self.writer.took_loop = (
                self._ensure_timer
            )  # attempts of an earlier process end without being asked for

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.db.path or ':memory:')!r})"

    def announce(self, url: str) -> None:
        """Write the URL of this process's server into the file's lock, for those who ask who writes it."""
        if self.db.lock is not None:
            self.db.lock.announce(url=url)

    @property
    def in_use(self) -> bool:
        """Whether a process writes the file."""
        return self.db.path is not None and holder_of(self.db.path) is not None

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
