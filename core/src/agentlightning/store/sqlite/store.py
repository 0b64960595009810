"""The store in one SQLite file: embedded, durable, the default."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentlightning.store.base import Store, StoreError
from agentlightning.store.routes import BY_NAME, BatchOutcome, from_outcome, to_outcome
from agentlightning.store.sqlite.clock import monotonic_clock
from agentlightning.store.sqlite.file.database import Database
from agentlightning.store.sqlite.file.writer import PartialWrite
from agentlightning.store.sqlite.run_data.retention import RetentionStore
from agentlightning.store.sqlite.run_data.rewards import RewardVersionStore
from agentlightning.store.sqlite.run_data.runs import RunStore
from agentlightning.store.sqlite.run_data.statistics import StatisticsStore
from agentlightning.store.sqlite.trace.reading import TraceReader
from agentlightning.store.sqlite.trace.records import RecordReader


def store_file(place: str | Path | None = None) -> Path | Literal[":memory:"]:
    """Return the file at a place; ``None``: ``AGL_STORAGE``, else ``~/.agent-lightning``."""
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
    RunStore,
    RewardVersionStore,
    StatisticsStore,
    RetentionStore,
    Store,
):
    """All of :class:`~agentlightning.store.base.Store`, in one SQLite file.

    One process writes a file, and holds its lock (:mod:`.file.lock`); with ``read_only`` any number of
    processes read it meanwhile.

    ``path``: file, folder, ``sqlite:///…`` or ``:memory:``; ``None``: ``AGL_STORAGE``, else
    ``~/.agent-lightning/store.sqlite``. ``synchronous``: ``NORMAL`` survives kill -9, ``FULL`` power loss
    too. ``clock`` returns seconds since the epoch; the default reads the wall clock once (:mod:`.clock`).

    Coroutines may be awaited from any loop or thread: the loop that used the store first does the work, and
    must not be blocked meanwhile.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        read_only: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(Database(store_file(path), synchronous, read_only), clock or monotonic_clock())

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.db.path or ':memory:')!r})"

    async def batch(
        self, calls: Sequence[tuple[str, dict[str, Any]]], *, request_id: str | None = None
    ) -> list[Any]:
        """Do each ``(method, parameters)`` in order, as one write. Return a result each, or the exception in
        its place.

        The batch is on file as a whole or not at all; a call that fails changes nothing; a batch that is sent
        again under its request id is answered the same and not done again. Nothing waits: leave ``wait`` and
        ``timeout`` out, or give 0.
        """
        coroutines = [partial(self._run_call, method, given) for method, given in calls]
        names = [method for method, _ in calls]
        if not any(name in BY_NAME and BY_NAME[name].mutates for name in names):
            request_id = None  # nothing to remember

        for savepoints in (False, True):
            try:
                return await self._write(
                    "batch",
                    partial(self.writer.write_batch, coroutines, savepoints),
                    request_id,
                    list[BatchOutcome],
                    to_answer=lambda results: [to_outcome(r) for r in results],
                    from_answer=lambda outcomes: [
                        from_outcome(*pair) for pair in zip(names, outcomes, strict=True)
                    ],
                )
            except PartialWrite as error:
                failed = error
        raise StoreError(f"the write failed and nothing of it was stored: {failed}") from failed.__cause__

    async def _run_call(self, method: str, given: dict[str, Any]) -> Any:
        if method not in BY_NAME:
            raise ValueError(f"method: there is no {method!r}; one of {', '.join(sorted(BY_NAME))}")
        if given.get("wait") or (method == "wait_for_rollouts" and given.get("timeout") != 0):
            raise ValueError(f"nothing waits in a batch: send {method} on its own, or without waiting")
        return await getattr(self, method)(**given)

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
