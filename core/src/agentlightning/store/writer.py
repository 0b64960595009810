"""Group commit: all writes of one turn of the event loop share one transaction.

The first write of a turn opens the transaction and schedules its commit with ``call_soon``; there is no
timer. Each write runs in a savepoint, so an error undoes that write alone. A caller is answered after the
commit: acknowledged ⇒ on file. If the commit fails, or SQLite drops the transaction (disk full), every caller
of the turn gets a :class:`StoreError`.

The connection belongs to one event loop, the first that uses it. Calls from other loops and threads are
handed to it; when the owner has stopped, the next caller becomes the owner.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agentlightning.store.base import StoreError

T = TypeVar("T")


class Writer:
    """Runs work against the connection, on the loop that owns it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._commit_handle: asyncio.Handle | None = None
        self.closed = False
        self.commits = 0

    async def write(self, work: Callable[[], T]) -> T:
        """Run ``work`` in this turn's transaction; return its result once that is on file."""
        if self._elsewhere():
            return await self.on_owner(lambda: self.write(work))
        self._begin()
        result = self._guarded(work)
        await self._durable()
        return result

    async def read(self, work: Callable[[], T]) -> T:
        """Run a query. What it saw of an open transaction is on file before it is returned."""
        if self._elsewhere():
            return await self.on_owner(lambda: self.read(work))
        try:
            result = work()
        except sqlite3.Error as error:
            raise StoreError(f"the store could not be read: {error}") from error
        if self._commit_handle is not None:
            await self._durable()
        return result

    async def on_owner(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine on the loop that owns the connection."""
        if not self._elsewhere():
            return await make()
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))

    def _elsewhere(self) -> bool:
        """Whether another, living loop owns the connection. Takes over from one that has stopped."""
        running = asyncio.get_running_loop()
        if running is self._loop and not self.closed and os.getpid() == self._pid:
            return False
        if self.closed:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                f"this store was opened by process {self._pid}; a forked process must not use its "
                "connection: serve the store (`agl store`) and use StoreClient here"
            )
        if self._loop is not None and self._loop.is_running():
            return True
        self._adopt(running)
        return False

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        if (
            self._commit_handle is not None
        ):  # the old loop stopped before its commit: nobody was told of these writes
            self._commit_handle.cancel()
            self._commit_handle = None
            self._waiters.clear()
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        self._loop = loop

    def _begin(self) -> None:
        if self._commit_handle is None:
            assert self._loop is not None
            try:
                self._execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise StoreError(f"the store cannot be written: {error}") from error
            self._commit_handle = self._loop.call_soon(self._commit)

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            self._execute("SAVEPOINT w")
            result = work()
            self._execute("RELEASE w")
            return result
        except BaseException as error:
            self._undo(error)
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"the write failed and nothing of it was stored: {error}") from error
            raise

    def _undo(self, error: BaseException) -> None:
        """Take back one write; if SQLite has dropped the whole transaction, fail all of this turn."""
        if self._connection.in_transaction:
            try:
                self._execute("ROLLBACK TO w")
                self._execute("RELEASE w")
                return
            except sqlite3.Error as second:
                error = second
        self._fail(error)

    def _commit(self) -> None:
        self._commit_handle = None
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)
            return
        self.commits += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._commit_handle is not None:
            self._commit_handle.cancel()
            self._commit_handle = None
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(
                    StoreError(f"the commit failed and nothing of this write was stored: {error}")
                )

    async def _durable(self) -> None:
        """Wait for this turn's commit. Each caller has its own future: cancelling one leaves the others
        alone.
        """
        assert self._loop is not None
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    async def close(self) -> None:
        """Commit what is open, then refuse further use."""
        if self.closed:
            return
        if self._elsewhere():
            await self.on_owner(self.close)
            return
        if self._commit_handle is not None:
            self._commit_handle.cancel()
            self._commit()
        self.closed = True
