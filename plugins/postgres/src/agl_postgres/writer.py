"""How the store's work reaches the database: through lanes of threads, from any event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar, cast

import psycopg

from agentlightning.store.base import StoreError
from agentlightning.store.sql.database import PartialWrite, Touched, nothing, run_to_end
from agl_postgres.connection import retry_name
from agl_postgres.database import PostgresDatabase, Transaction
from agl_postgres.lanes import Hooks, Job, Lanes
from agl_postgres.settings import Settings

T = TypeVar("T")


class PostgresWriter:
    """Runs reads and writes in the threads of :class:`Lanes`. It belongs to no event loop."""

    def __init__(
        self, settings: Settings, db: PostgresDatabase, hooks: Hooks, clock: Callable[[], float]
    ) -> None:
        self._db, self._pid = db, os.getpid()
        self.writes, self.reads = (Lanes(settings, db, hooks, clock, writes) for writes in (True, False))
        self.closed = False

    async def write(self, work: Callable[[], T], touched: Callable[[], Touched] = nothing) -> T:
        """Run ``work`` in a transaction; return its result after the commit. A caller that is cancelled
        meanwhile waits for the end of what has begun, so that it knows what it has.
        """
        if (within := self._db.transaction) is not None:
            return self._write_in_batch(within, work)
        return cast(T, await _outcome(self._submit(self.writes, Job(work, touched))))

    async def read(self, work: Callable[[], T]) -> T:
        """Run queries that see one state of the tables; return their result."""
        if self._db.transaction is not None:
            try:
                return work()
            except psycopg.Error as error:  # nothing of the transaction can be committed any more
                raise PartialWrite(str(error)) from error
        return cast(T, await _outcome(self._submit(self.reads, Job(work, None))))

    def submit_write(self, work: Callable[[], T]) -> Future[T]:
        """Do the same as :meth:`write`, for a thread that has no event loop."""
        return self._submit(self.writes, Job(work, nothing)).future

    def write_now(self, work: Callable[[], T]) -> T:
        """Do the same as :meth:`write`, for a thread that may block."""
        return self.submit_write(work).result()

    def _submit(self, lanes: Lanes, job: Job) -> Job:
        if os.getpid() != self._pid:
            raise StoreError(
                f"this store was opened by process {self._pid}; a forked process must open its own"
            )
        lanes.submit(job)
        return job

    def write_batch(
        self, coroutines: Sequence[Callable[[], Coroutine[Any, Any, Any]]], savepoints: bool
    ) -> list[Any]:
        """Run coroutines in order, within one write. Return a result or an exception each.

        No coroutine may wait. If one fails after a change, :class:`PartialWrite` rolls all of them back. The
        caller runs them again with ``savepoints``, one for each coroutine.
        """
        within = self._db.transaction
        assert within is not None, "a batch runs within a write"
        within.batch = "savepoints" if savepoints else "plain"
        try:
            return [run_to_end(make()) for make in coroutines]
        finally:
            within.batch = None

    def _write_in_batch(self, within: Transaction, work: Callable[[], T]) -> T:
        """Run the write of one call of a batch."""
        savepoints, before = within.batch == "savepoints", within.changes
        try:
            return self._in_savepoint(within, work) if savepoints else work()
        except Exception as error:
            in_database = isinstance(error, psycopg.Error)
            if (not savepoints and (in_database or within.changes != before)) or retry_name(error):
                raise PartialWrite(str(error)) from error
            if in_database:
                raise StoreError(f"the write failed and nothing of it was stored: {error}") from error
            raise

    def _in_savepoint(self, within: Transaction, work: Callable[[], T]) -> T:
        """Run a write; if it fails, undo what it changed, and nothing else."""
        within.connection.execute("SAVEPOINT part")
        try:
            result = work()
        except Exception:
            if not within.connection.closed:
                within.connection.execute("ROLLBACK TO part")
            self.writes.undone()
            raise
        within.connection.execute("RELEASE part")
        return result

    async def on_writer_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine on the running loop: no loop owns the connections."""
        if self.closed:
            raise StoreError("the store is closed")
        return await make()

    def close(self) -> None:
        """Commit what is queued, then refuse further use."""
        self.closed = True
        for lanes in (self.writes, self.reads):
            lanes.close()


async def _outcome(job: Job) -> Any:
    """Wait for a job; if the caller is cancelled, for the end of what has begun."""
    waiting = asyncio.wrap_future(job.future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if waiting.cancelled() or job.future.cancel():  # nobody has begun it
            raise
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()
        raise
