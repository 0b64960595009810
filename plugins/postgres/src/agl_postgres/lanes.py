"""Lanes: threads with a connection each. Writers commit in groups, readers answer one query at a time.

A writer takes all writes that wait, up to a limit, into one transaction; while one commits, the next lane
gathers. An error undoes only its own write: a group with one that fails after a change is rolled back, and
its writes run again one by one. So does a write that met another process (a deadlock, a key that was made
meanwhile): it is repeated, and counted.

**Whether a commit arrived.** A connection may break while the server commits. So every transaction begins
with a row of its own in ``requests``, its mark. The repeated transaction begins with the same mark: if the
first one was committed, or is being committed, the mark is there, and the writes keep the results that they
had.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from agentlightning.store.base import StoreError
from agentlightning.store.sql.database import Touched
from agl_postgres.connection import Connection, connect_patiently, is_lost, retry_name
from agl_postgres.database import PostgresDatabase, Transaction
from agl_postgres.settings import Settings

_log = logging.getLogger(__name__)
GROUP = 64
"""Writes of one transaction at most."""
_TRIES = 20
"""Times that a write is repeated which met another process."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_MARK = "INSERT INTO requests (request_id, method, time, answer) VALUES (%s, 'commit', %s, '')"


@dataclass(slots=True, eq=False)
class Job:
    """A read or a write, and who waits for it."""

    work: Callable[[], Any]
    touched: Callable[[], Touched] | None
    """What it is going to change; ``None``: it only reads."""
    future: Future[Any] = field(default_factory=Future)
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        """Run the work, and keep its result or its error."""
        self.result = self.error = None
        try:
            self.result = self.work()
        except Exception as error:
            self.error = error

    def answer(self) -> None:
        """Tell the caller."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Hooks(Protocol):
    """What a store does around its transactions, in the thread of the lane."""

    def begun(self) -> None:
        """A transaction begins: forget what another process may have changed."""

    def undone(self) -> None:
        """A transaction was rolled back."""

    def committing(self, transaction: Transaction) -> None:
        """A transaction is about to be committed."""

    def committed(self, transaction: Transaction) -> None:
        """A transaction was committed."""


class _Broken(Exception):
    """A write of a group failed after a change, or in the database."""


class Lanes:
    """The threads of one kind, and the queue that they share."""

    def __init__(
        self, settings: Settings, db: PostgresDatabase, hooks: Hooks, clock: Callable[[], float], writes: bool
    ) -> None:
        self.settings, self.db, self._hooks, self._clock, self.writes = settings, db, hooks, clock, writes
        self.counts: Counter[str] = Counter()
        """Commits, reconnections, and repetitions by their reason."""
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._most = settings.writers if writes else settings.readers

    def submit(self, job: Job) -> None:
        """Queue a job. A thread, with its connection, is made when none is idle and there may be one more."""
        with self._ready:
            if self._closed:
                raise StoreError("the store is closed")
            self._jobs.append(job)
            if self._idle:
                self._ready.notify()
            elif len(self._threads) < self._most:
                name = f"agl-postgres-{'writer' if self.writes else 'reader'}-{len(self._threads)}"
                thread = threading.Thread(target=_Lane(self).run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def take(self) -> list[Job]:
        """Wait for jobs and take them: all that wait, up to a limit, or one that reads. Empty: the end."""
        with self._ready:
            while not self._jobs:
                if self._closed:
                    return []
                self._idle += 1
                self._ready.wait()
                self._idle -= 1
            n = min(len(self._jobs), GROUP if self.writes else 1)
            taken = [self._jobs.popleft() for _ in range(n)]
            if self._jobs and self._idle:
                self._ready.notify()
        return [job for job in taken if job.future.set_running_or_notify_cancel()] or self.take()

    def count(self, what: str) -> None:
        """Count an event."""
        with self._ready:
            self.counts[what] += 1

    def begun(self) -> None:
        self._hooks.begun()

    def undone(self) -> None:
        self._hooks.undone()

    def finish(self, connection: Connection, transaction: Transaction) -> None:
        """Send the signals of a transaction with its commit; then wake who waits in this process."""
        self._hooks.committing(transaction)
        connection.execute("COMMIT")
        self.count("commits")
        self._hooks.committed(transaction)

    def mark(self, connection: Connection, name: str) -> bool:
        """Begin a transaction under a mark. Return False if it was committed before."""
        connection.execute(_BEGIN)
        try:
            connection.execute(_MARK, (name, self._clock()))
        except errors.UniqueViolation:
            connection.execute("ROLLBACK")
            return False
        return True

    def close(self) -> None:
        """Do what is queued, then end all threads and their connections."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()


class _Lane:
    """One thread with its connection."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.db = lanes, lanes.db
        self._connection: Connection | None = None
        self._in_doubt = False
        """A commit was sent and not answered."""

    def run(self) -> None:
        """Work until the lanes are closed."""
        while jobs := self.lanes.take():
            try:
                self._serve(jobs) if self.lanes.writes else self._repeat(lambda: self._read(jobs[0]))
            except Exception as error:
                for job in jobs:
                    if not job.future.done():
                        job.future.set_exception(_told(error))
        self._drop()

    # -- groups

    def _serve(self, jobs: Sequence[Job]) -> None:
        """Commit a group; if that fails for one of them, commit them one by one."""
        try:
            self._commit(jobs)
        except _Broken:
            for job in jobs:
                try:
                    self._commit_alone(job)
                except Exception as error:
                    job.future.set_exception(_told(error))

    def _commit_alone(self, job: Job) -> None:
        """Commit one write. Repeat it while it meets other processes."""
        for n in range(_TRIES):
            try:
                return self._commit([job])
            except _Broken as broken:
                error = broken.__cause__ or broken
                name = retry_name(error)
                if name is None or n == _TRIES - 1:
                    raise error from None
                self.lanes.count(name)
                time.sleep(random.uniform(0, 0.005 * (n + 1)))
        raise AssertionError("unreachable")

    def _commit(self, jobs: Sequence[Job]) -> None:
        """Run writes in one transaction and answer them. Raise :class:`_Broken` if it was rolled back."""
        mark = f"commit-{secrets.token_hex(12)}"
        self._in_doubt = False
        try:
            self._repeat(lambda: self._transact(jobs, mark))
        except (psycopg.Error, StoreError) as error:
            if not self._in_doubt:
                raise
            settings = self.lanes.settings
            raise StoreError(
                f"{settings.shown} went away while it committed and did not answer for {settings.patience:g} "
                "s: whether the write was stored is not known. Send it again under the same request id"
            ) from error
        for job in jobs:
            job.answer()

    def _transact(self, jobs: Sequence[Job], mark: str) -> None:
        connection, lanes = self._open(), self.lanes
        if not lanes.mark(connection, mark):
            return  # it was committed before: every job has its result
        self._in_doubt = False
        lanes.begun()
        with self.db.within(Transaction(connection)) as transaction:
            try:
                self._run_all(jobs, transaction)
                self._in_doubt = True
                lanes.finish(connection, transaction)
            except BaseException as error:
                self._undo(error)
                raise

    def _run_all(self, jobs: Sequence[Job], transaction: Transaction) -> None:
        try:
            touched = Touched()
            for job in jobs:
                touched |= job.touched() if job.touched is not None else Touched()
            self.db.lock(touched)
        except psycopg.Error as error:
            if is_lost(transaction.connection, error):
                raise
            raise _Broken from error
        for job in jobs:
            before = transaction.changes
            job.run()
            for cause in (job.error, getattr(job.error, "__cause__", None)):
                if isinstance(cause, psycopg.Error) and is_lost(transaction.connection, cause):
                    raise cause
            whole = transaction.connection.info.transaction_status is TransactionStatus.INTRANS
            if not whole or (job.error is not None and transaction.changes != before):
                raise _Broken from job.error

    # -- reads

    def _read(self, job: Job) -> None:
        connection = self._open()
        connection.execute(_BEGIN_READ)
        with self.db.within(Transaction(connection, read_only=True)):
            job.run()
            lost = isinstance(job.error, psycopg.Error) and is_lost(connection, job.error)
            self._undo(job.error)
        if lost:
            assert job.error is not None
            raise job.error
        if isinstance(job.error, psycopg.Error):
            job.error = StoreError(f"the store could not be read: {_one_line(job.error)}")
        job.answer()

    # -- connections

    def _repeat(self, work: Callable[[], None]) -> None:
        """Do work, and again with a new connection if the connection broke, while the patience lasts."""
        until = time.monotonic() + self.lanes.settings.patience
        while True:
            try:
                return work()
            except psycopg.Error as error:
                if not is_lost(self._connection, error):
                    raise
                self._drop()
                self.lanes.count("reconnections")
                if time.monotonic() >= until:
                    raise

    def _open(self) -> Connection:
        if self._connection is None:
            settings = self.lanes.settings
            self._connection = connect_patiently(settings, settings.patience, not self.lanes.writes)
        return self._connection

    def _undo(self, error: BaseException | None) -> None:
        """Roll back, if the connection still works."""
        self.lanes.undone() if error is not None else None
        connection = self._connection
        if connection is not None and not connection.closed:
            try:
                connection.execute("ROLLBACK")
            except psycopg.Error:
                connection.close()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _told(error: BaseException) -> BaseException:
    """Return what a caller is told: errors of the database become :class:`StoreError`."""
    if isinstance(error, psycopg.Error):
        told = StoreError(f"the write failed and nothing of it was stored: {_one_line(error)}")
        told.__cause__ = error
        return told
    return error
