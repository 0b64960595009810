"""Group commit: all writes of one turn of the event loop share one transaction.

The first write of a turn opens the transaction and schedules its commit with ``call_soon``; there is no
timer. A caller is answered after the commit: acknowledged ⇒ on file. If the commit fails, or SQLite drops the
transaction (disk full), every caller of the turn gets a :class:`StoreError`.

An error undoes only its own write. Most errors occur before anything is changed, so a write has no savepoint:
if one fails after a change, the turn is rolled back and its other writes run again. A write must therefore be
a function of the tables, safe to run twice.

The connection belongs to one event loop, the first that uses it. Calls from other loops and threads are
handed to that loop; once it has stopped, the connection belongs to the loop of the next caller.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeVar, cast

from agentlightning.store.base import StoreError
from agentlightning.store.sql.database import PartialWrite, Touched, nothing, run_to_end

T = TypeVar("T")
_POLL_SECONDS = 1.0
"""Seconds between two checks that the other loop still runs."""


class _PendingWrite:
    """One read or write of this turn, with its own future: to cancel one caller leaves the others alone."""

    __slots__ = ("future", "result", "work")

    def __init__(self, work: Callable[[], Any], result: Any, future: asyncio.Future[None]) -> None:
        self.work, self.result, self.future = work, result, future


class SQLiteWriter:
    """Runs reads and writes on the loop that owns the connection.

    The writer calls ``on_rollback`` whenever it rolls work back, and ``check`` before each commit; a
    :class:`StoreError` from ``check`` stops the commit. ``snapshots``: each read is a transaction, because
    another process writes.
    """

    _batch_mode: Literal["plain", "savepoints"] | None = None
    """Set within :meth:`write_batch`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_rollback: Callable[[], None],
        check: Callable[[], None] = lambda: None,
        *,
        snapshots: bool = False,
    ) -> None:
        self._connection = connection
        self._on_rollback = on_rollback
        self._check = check
        self._snapshots = snapshots
        self._execute = connection.execute
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn: list[_PendingWrite] = []
        self._commit_handle: asyncio.Handle | None = None
        self.closed = False
        self.commits = 0
        self.took_loop: Callable[[], None] = lambda: None
        """Called on the loop that owns the connection, once it does."""

    async def write(self, work: Callable[[], T], touched: Callable[[], Touched] = nothing) -> T:
        """Run ``work`` in this turn's transaction; return its result after the commit. Nobody else writes the
        file, so that nothing is locked for what is ``touched``.
        """
        if self._batch_mode is not None:
            return self._write_in_batch(work)
        if self._other_loop_owns():
            return await self.on_writer_loop(lambda: self.write(work))
        if self._commit_handle is None:
            self._begin()
        before = self._connection.total_changes
        try:
            result = work()
        except BaseException as error:
            if not self._connection.in_transaction:
                self._fail(error)
            elif self._connection.total_changes != before:
                self._replay_turn()
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"the write failed and nothing of it was stored: {error}") from error
            raise
        return await self._wait_for_commit(work, result)

    async def read(self, work: Callable[[], T]) -> T:
        """Run a query; return its result after the commit of the transaction that it saw."""
        if self._batch_mode is None and self._other_loop_owns():
            return await self.on_writer_loop(lambda: self.read(work))
        try:
            if self._snapshots:  # all queries of the work see the same state of the file
                self._execute("BEGIN")
            result = work()
        except sqlite3.Error as error:
            raise StoreError(f"the store could not be read: {error}") from error
        finally:
            if self._snapshots and self._connection.in_transaction:
                self._execute("COMMIT")
        if self._batch_mode is not None or self._commit_handle is None:
            return result
        return await self._wait_for_commit(work, result)

    def write_batch(
        self, coroutines: Sequence[Callable[[], Coroutine[Any, Any, Any]]], savepoints: bool
    ) -> list[Any]:
        """Run coroutines in order, within one write. Return a result or an exception each.

        No coroutine may wait. If one fails after a change, :class:`PartialWrite` rolls all of them back. The
        caller runs them again with ``savepoints``, one for each coroutine, which cost too much for the usual
        case.
        """
        self._batch_mode = "savepoints" if savepoints else "plain"
        try:
            return [run_to_end(make()) for make in coroutines]
        finally:
            self._batch_mode = None

    def _write_in_batch(self, work: Callable[[], T]) -> T:
        """Run the write of one call of a batch."""
        savepoints, before = self._batch_mode == "savepoints", self._connection.total_changes
        try:
            return self._in_savepoint(work) if savepoints else work()
        except Exception as error:
            partial = not savepoints and self._connection.total_changes != before
            if partial or not self._connection.in_transaction:
                raise PartialWrite(str(error)) from error
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"the write failed and nothing of it was stored: {error}") from error
            raise

    def _in_savepoint(self, work: Callable[[], T]) -> T:
        """Run a write; if it fails, undo what it changed, and nothing else."""
        self._execute("SAVEPOINT part")
        try:
            return work()
        except Exception:
            if self._connection.in_transaction:
                self._execute("ROLLBACK TO part")
                self._on_rollback()
            raise
        finally:
            if self._connection.in_transaction:
                self._execute("RELEASE part")

    async def on_writer_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine on the loop that owns the connection.

        If that loop ends before the coroutine has begun, this loop takes over; if it ends later, this raises
        :class:`StoreError`.
        """
        while self._other_loop_owns():
            assert self._loop is not None
            coroutine, owner = make(), self._loop
            try:
                asked = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, owner))
            except RuntimeError:  # closed just now
                coroutine.close()
                continue
            if await _wait_for_answer(asked, owner):
                return asked.result()
            if inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED:
                raise StoreError(
                    "the event loop that the store was used on has ended before it answered; ask again"
                )
            coroutine.close()
        return await make()

    def _other_loop_owns(self) -> bool:
        """Return whether another, running loop owns the connection. Take it over from a loop that has
        stopped.
        """
        running = asyncio.get_running_loop()
        if self.closed:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                f"this store was opened by process {self._pid}; a forked process must not use its "
                "connection: serve the store (`agl store`) and use StoreClient here"
            )
        if running is self._loop:
            return False
        if self._loop is not None and self._loop.is_running():
            return True
        self._take_connection(running)
        return False

    def _take_connection(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._loop.is_closed():
            self._turn.clear()  # nobody waits for these writes any more
        self._loop = loop
        self._fail("its event loop stopped before the commit")
        loop.call_soon(self._arm)

    def _arm(self) -> None:
        if not self.closed:
            self.took_loop()

    def _begin(self) -> None:
        assert self._loop is not None
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot be written: {error}") from error
        self._commit_handle = self._loop.call_soon(self._commit)

    def _replay_turn(self) -> None:
        """Roll the turn back and run its writes again, each in a savepoint: one failed after a change."""
        turn, self._turn = self._turn, []
        try:
            self._execute("ROLLBACK")
            self._on_rollback()
            self._execute("BEGIN IMMEDIATE")
            for entry in turn:
                try:
                    entry.result = self._in_savepoint(entry.work)
                except Exception as error:
                    if not self._connection.in_transaction:
                        raise
                    if not entry.future.done():
                        entry.future.set_exception(error)
                else:
                    self._turn.append(entry)
        except Exception as error:
            self._turn = turn
            self._fail(error)

    def _commit(self) -> None:
        self._commit_handle = None
        try:
            self._check()
            self._execute("COMMIT")
        except (sqlite3.Error, StoreError) as error:
            self._fail(error)
            return
        self.commits += 1
        turn, self._turn = self._turn, []
        for entry in turn:
            if not entry.future.done():
                entry.future.set_result(None)

    def _fail(self, error: object) -> None:
        """Roll the turn back and raise ``error`` in every caller."""
        if self._commit_handle is not None:
            self._commit_handle.cancel()
            self._commit_handle = None
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        self._on_rollback()
        turn, self._turn = self._turn, []
        for entry in turn:
            if not entry.future.done():
                message = f"the commit failed and nothing of this write was stored: {error}"
                entry.future.set_exception(StoreError(message))

    async def _wait_for_commit(self, work: Callable[[], T], result: T) -> T:
        """Wait for this turn's commit. Return the result of the run that was committed."""
        assert self._loop is not None
        entry = _PendingWrite(work, result, self._loop.create_future())
        self._turn.append(entry)
        await entry.future
        return cast(T, entry.result)

    def close(self) -> None:
        """Commit what is open, then refuse further use. The loop that owns the connection must call this."""
        if self._commit_handle is not None:
            self._commit_handle.cancel()
            self._commit()
        self.closed = True


async def _wait_for_answer(asked: asyncio.Future[Any], owner: asyncio.AbstractEventLoop) -> bool:
    """Wait for the other loop's result. Return False if that loop ended without one."""
    try:
        while not asked.done() and owner.is_running():
            await asyncio.wait({asked}, timeout=_POLL_SECONDS)
    finally:
        answered = asked.done() and not asked.cancelled()
        asked.cancel()  # if it is not done, no caller waits for it any more
    return answered
