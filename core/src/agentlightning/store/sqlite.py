"""The store in one SQLite file: the embedded, durable default."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from agentlightning.store.accounts import Accounts
from agentlightning.store.base import Capabilities, StoreError
from agentlightning.store.batch import Batches
from agentlightning.store.clock import Anchored
from agentlightning.store.db import Database
from agentlightning.store.memory import Memory
from agentlightning.store.numbers import Numbers
from agentlightning.store.reading import Reading
from agentlightning.store.records import Records
from agentlightning.store.requeue import Requeues
from agentlightning.store.resources import ResourcesPart
from agentlightning.store.retention import Retention
from agentlightning.store.signals import Signals
from agentlightning.store.statistics import Statistics
from agentlightning.store.steps import Steps
from agentlightning.store.watchdog import Watchdog
from agentlightning.store.workers import Workers
from agentlightning.store.writer import Writer


def store_file(place: str | Path | None = None) -> Path | Literal[":memory:"]:
    """The file that a place names; ``None``: ``AGL_STORAGE``, else ``~/.agent-lightning``."""
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
    Reading,
    Records,
    Numbers,
    Requeues,
    Workers,
    Watchdog,
    ResourcesPart,
    Accounts,
    Steps,
    Statistics,
    Retention,
    Batches,
):
    """All of :class:`~agentlightning.store.base.Store`, in one file that this process owns.

    ``path``: file, folder, ``sqlite:///…`` or ``:memory:``; ``None``: ``AGL_STORAGE``, else
    ``~/.agent-lightning/store.sqlite``. ``synchronous``: ``NORMAL`` survives kill -9, ``FULL`` power loss
    too. Coroutines may be awaited from any loop or thread: work is handed to the loop that used the store
    first, which must not be blocked meanwhile. ``clock`` gives seconds since the epoch; by default those
    that have passed since the wall clock was read, once (:mod:`.clock`).
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.db = Database(store_file(path), synchronous)
        self.memory = Memory()
        self.writer = Writer(self.db.connection, self.memory.forget, self.db.check_file)
        self.signals = Signals()
        self.clock = clock or Anchored()
        self.opened = self.clock()
        self._marks = deque()
        self._take_over()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.db.path or ':memory:')!r})"

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return Capabilities(
            durable=self.db.path is not None,
            async_safe=True,
            thread_safe=True,
            zero_copy=False,
            otlp_traces=False,
        )

    async def close(self) -> None:
        """Commit, close the file, let the next process have it. Twice does no harm."""
        if not self.writer.closed:
            await self.writer.on_owner(self._shut)

    async def _shut(self) -> None:
        self.signals.release()
        self._stop_watching()
        await self.writer.close()
        self.db.close()
