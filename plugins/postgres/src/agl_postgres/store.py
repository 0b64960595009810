"""The store in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import psycopg
from sqlalchemy import bindparam, delete, select

from agentlightning.store.base import REMEMBERED, StoreError
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import StoreCache
from agentlightning.store.sql.expiry import begin_limits, end_overdue
from agentlightning.store.sql.store import SQLStore
from agentlightning.store.sql.waiting import Clock, LoopWatch
from agl_postgres.connection import Connection, connect_patiently, is_lost
from agl_postgres.database import PostgresDatabase, Transaction
from agl_postgres.listener import LOOK_SECONDS, Listener
from agl_postgres.settings import settings_of
from agl_postgres.signals import PostgresWaiters
from agl_postgres.versions import prepare, require_current, schema_of
from agl_postgres.writer import PostgresWriter

_log = logging.getLogger(__name__)
_OPENING_SECONDS = 10.0
"""Seconds to wait for a server that starts when a store is opened; a store that is open waits longer."""
_CLOCK_SECONDS = 60.0
"""Seconds between two readings of the server's clock."""
_STALL_SECONDS = 1.0
"""A look that comes or is answered later than this tells of a stall."""
_FORGET_SECONDS, _FORGET_MOST = 60.0, 5000
"""Seconds between two deletions of old answers, and how many one of them deletes."""
_q = schema.requests.c
_OLDEST = select(_q.seq).order_by(_q.seq).limit(bindparam("most"))
_FORGET = delete(schema.requests).where(_q.seq.in_(_OLDEST), _q.time < bindparam("before"))


class ServerClock:
    """The server's clock, which all processes share: read now and then, counted from there."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._read_at: float | None = None

    def __call__(self) -> float:
        return self._offset + time.monotonic()

    def read(self, connection: Connection) -> None:
        """Read the server's clock, if that was not done lately."""
        before = time.monotonic()
        if self._read_at is not None and before < self._read_at + _CLOCK_SECONDS:
            return
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        assert row is not None
        self._read_at = time.monotonic()
        self._offset = row[0] - (before + self._read_at) / 2


class ThreadCache(StoreCache, threading.local):
    """A cache for each thread that writes. What it knows of attempts holds for one transaction; an index of
    calls stays, since all that is in it is in the tables.
    """

    def begin(self) -> None:
        """Forget what another process may have changed."""
        self.attempts.clear()
        self.next_due = None


class LeaderWatch(LoopWatch):
    """Watches no event loop: none does the store's work. The leader notes what it or the server slept."""

    def start(self) -> None:
        """Do nothing."""

    def look(self) -> None:
        """Do nothing."""


class PostgresStore(SQLStore):
    """All of :class:`~agentlightning.store.base.Store`, in a database that many processes write.

    ``url``: ``postgresql://user@host:port/database``, as libpq reads it, with the options ``agl_writers`` and
    ``agl_readers`` (connections). ``AGL_STORE_PATIENCE``: seconds to wait for a server that does not answer.
    ``read_only``: queries only; it makes no tables and never leads. ``clock`` returns seconds since the
    epoch; the default is the server's clock. ``look_seconds``: seconds between two looks of the leader at
    limits that other processes set, and between two tries of the others to lead.

    Coroutines may be awaited from any event loop or thread.
    """

    db: PostgresDatabase
    writer: PostgresWriter
    waiters: PostgresWaiters
    cache: ThreadCache
    watch: LeaderWatch

    def __init__(
        self,
        url: str,
        *,
        read_only: bool = False,
        clock: Callable[[], float] | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.settings = settings_of(url)
        self._server_clock = ServerClock()
        connection, schema_name = self._prepared(read_only)
        db = PostgresDatabase(self.settings.shown, schema_name, read_only)
        now: Clock = clock or self._server_clock
        writer = PostgresWriter(self.settings, db, self, now)
        super().__init__(db, writer, now, ThreadCache(), PostgresWaiters(db))
        self.watch = LeaderWatch(now, lambda: False)
        self.listener = Listener(
            *(self.settings, connection, self.waiters.channel, db.schema, self),
            leads=not read_only,
            look_seconds=look_seconds,
        )
        self.timer = _LeaderTimer(self)
        self._look_began: float | None = None
        """Monotonic time of the leader's look that is under way."""
        self._forget_at = 0.0
        self.listener.start()

    def _prepared(self, read_only: bool) -> tuple[Connection, str]:
        """Return a connection to a database with our tables, and the schema that has them. A server that goes
        away meanwhile is waited for, as one that is not there yet.
        """
        until = time.monotonic() + _OPENING_SECONDS
        while True:
            left = max(0.0, until - time.monotonic())
            connection = connect_patiently(self.settings, left, read_only)
            try:
                (require_current if read_only else prepare)(connection)
                self._server_clock.read(connection)
                return connection, schema_of(connection)
            except psycopg.Error as error:
                lost = is_lost(connection, error)
                connection.close()
                if not lost or not left:
                    shown = self.settings.shown
                    raise StoreError(f"{shown} cannot be opened as a store: {error}") from None
            except BaseException as error:
                connection.close()
                if isinstance(error, StoreError):
                    raise StoreError(f"{self.settings.shown}: {error}") from None
                raise

    def __repr__(self) -> str:
        return f"PostgresStore({self.settings.shown!r})"

    # -- around transactions (lanes.Hooks)

    def begun(self) -> None:
        """Forget what another process may have changed since this thread's last transaction."""
        self.cache.begin()

    def undone(self) -> None:
        """Forget what was rolled back."""
        self.cache.clear()

    def committing(self, transaction: Transaction) -> None:
        """Signal what a transaction has done to other processes."""
        self.waiters.committing(transaction)

    def committed(self, transaction: Transaction) -> None:
        """Signal what a transaction has done within this process."""
        self.waiters.committed(transaction)

    # -- in the listener's thread (listener.Duties)

    def received(self, payload: str) -> None:
        """Pass on a signal of another process."""
        self.waiters.received(payload)

    def look_again(self) -> None:
        """Wake all who wait: signals may have been missed."""
        self.waiters.look_again()

    def heard(self, connection: Connection) -> None:
        """Read the server's clock now and then."""
        self._server_clock.read(connection)

    def lead(self) -> None:
        """Count limits from now on."""
        self.writer.write_now(lambda: begin_limits(self))

    def look(self, late: float) -> None:
        """End overdue attempts, in a lane, so that signals are heard meanwhile. Time in which this process or
        the server stood still lengthens limits.
        """
        if self._look_began is not None:  # the last look has no answer yet
            return
        asked = self.clock()
        if late > _STALL_SECONDS:
            self.watch.note(asked - late, asked)
        self._look_began = time.monotonic()
        looking = self.writer.submit_write(lambda: self._look(asked))
        looking.add_done_callback(lambda done: self._looked(asked, done))

    def _look(self, asked: float) -> None:
        """End what was overdue when the leader asked: the answer may have taken long."""
        end_overdue(self, asked)
        if time.monotonic() >= self._forget_at:
            gone = self.db.execute(_FORGET, before=asked - REMEMBERED, most=_FORGET_MOST)
            self._forget_at = time.monotonic() + (0.0 if gone == _FORGET_MOST else _FORGET_SECONDS)

    def _looked(self, asked: float, done: Future[None]) -> None:
        now = self.clock()
        if now - asked > _STALL_SECONDS:
            self.watch.note(asked, now)
        self._look_began = None
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.error("overdue attempts could not be ended: %s", error)

    def prune_answers(self, now: float) -> None:
        """Do nothing: the leader does it."""

    @property
    def in_charge(self) -> bool:
        """Whether this process leads, and the server answers promptly: then what is overdue is."""
        began = self._look_began
        return self.listener.leading and (began is None or time.monotonic() < began + _STALL_SECONDS)

    # -- the end

    async def close(self) -> None:
        """Commit what is under way, and close all connections. A second call does nothing."""
        if not self.writer.closed:
            self.waiters.wake_all()
            await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        self.listener.close()
        self.writer.close()


class _LeaderTimer:
    """Tells the listener when this process's attempts may be overdue."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    @property
    def armed(self) -> bool:
        """Always: the leader, in whatever process, looks again and again."""
        return True

    @property
    def in_charge(self) -> bool:
        """Whether this process leads."""
        return self._store.in_charge

    def arm(self, delay: float) -> None:
        """Let the leader look in ``delay`` seconds."""
        self._store.listener.arm(delay)

    def stop(self) -> None:
        """Do nothing: the listener is closed with the store."""
