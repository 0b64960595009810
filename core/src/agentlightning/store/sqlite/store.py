"""The store in one SQLite file: embedded, durable, the default."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from agentlightning.store.base import StoreError
from agentlightning.store.sqlite.batch import BatchWriter
from agentlightning.store.sqlite.cache import StoreCache
from agentlightning.store.sqlite.clock import MonotonicWallClock
from agentlightning.store.sqlite.file.database import Database
from agentlightning.store.sqlite.file.writer import Writer
from agentlightning.store.sqlite.queue.heartbeats import HeartbeatStore
from agentlightning.store.sqlite.queue.requeue import RequeueStore
from agentlightning.store.sqlite.queue.waiting import EndWaitStore
from agentlightning.store.sqlite.run_data.resources import ResourceStore
from agentlightning.store.sqlite.run_data.retention import RetentionStore
from agentlightning.store.sqlite.run_data.runs import RunStore
from agentlightning.store.sqlite.run_data.statistics import StatisticsReader
from agentlightning.store.sqlite.run_data.steps import StepStore
from agentlightning.store.sqlite.timer import ExpiryTimer
from agentlightning.store.sqlite.trace.reading import TraceReader
from agentlightning.store.sqlite.trace.records import RecordReader
from agentlightning.store.sqlite.trace.span_numbers import SpanNumbers
from agentlightning.store.sqlite.waiters import Waiters


def store_file(place: str | Path | None = None) -> Path | Literal[":memory:"]:
    """The file at a place; ``None``: ``AGL_STORAGE``, else ``~/.agent-lightning``."""
    place = place if place is not None else os.environ.get("AGL_STORAGE") or Path.home() / ".agent-lightning"
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


class SQLiteStore(
    TraceReader,
    RecordReader,
    SpanNumbers,
    RequeueStore,
    HeartbeatStore,
    EndWaitStore,
    ResourceStore,
    RunStore,
    StepStore,
    StatisticsReader,
    RetentionStore,
    BatchWriter,
):
    """All of :class:`~agentlightning.store.base.Store`, in one SQLite file.

    One process writes a file, and holds its lock (:mod:`.file.lock`); with ``read_only`` any number of
    processes read it meanwhile.

    ``path``: file, folder, ``sqlite:///…`` or ``:memory:``; ``None``: ``AGL_STORAGE``, else
    ``~/.agent-lightning/store.sqlite``. ``synchronous``: ``NORMAL`` survives kill -9, ``FULL`` power loss
    too. ``clock`` gives seconds since the epoch; by default those that have passed since the wall clock was
    read, once (:mod:`.clock`).

    Coroutines may be awaited from any loop or thread: work is handed to the loop that used the store first,
    which must not be blocked meanwhile.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        read_only: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.db = Database(store_file(path), synchronous, read_only)
        self.cache = StoreCache()
        self.writer = Writer(self.db.connection, self.cache.clear, self.db.check_file, snapshots=read_only)
        self.waiters = Waiters()
        self.clock = clock or MonotonicWallClock()
        self.opened = self.clock()
        self.timer = ExpiryTimer(self._expire_due)
        self._age_marks = deque()
        if not read_only:
            self._clamp_future_times()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.db.path or ':memory:')!r})"

    async def close(self) -> None:
        """Commit, close the file and release its lock. A second call does nothing."""
        if not self.writer.closed:
            await self.writer.on_writer_loop(self._shut)

    async def _shut(self) -> None:
        self.waiters.wake_all()
        self.timer.stop()
        await self.writer.close()
        self.db.close()
