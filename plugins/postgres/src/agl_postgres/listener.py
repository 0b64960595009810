"""One more connection, in a thread: it listens for signals, and one process of all is the leader.

The leader ends attempts that exceed their limits. Leadership is an advisory lock of this connection, so that
the server gives it to another process when the leader ends, however it ends. Limits count from the moment a
leader begins: nobody looked before, and workers may not have reached the store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from typing import Protocol

import psycopg
from psycopg import sql

from agentlightning.store.base import StoreError
from agl_postgres.connection import Connection, connect_patiently
from agl_postgres.settings import Settings
from agl_postgres.versions import lock_key

_log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
"""Seconds between two looks of the leader at limits that other processes set, and between two tries of the
others to lead.
"""


class Duties(Protocol):
    """What the thread does for a store."""

    def received(self, payload: str) -> None:
        """A signal of another process came."""

    def look_again(self) -> None:
        """Signals may have been missed."""

    def lead(self) -> None:
        """This process begins to lead."""

    def look(self, late: float) -> None:
        """This process leads, and attempts may be overdue. It looks ``late`` seconds after it meant to."""

    def heard(self, connection: Connection) -> None:
        """The server answers; it has been asked for nothing else."""


class Listener:
    """The thread. ``look_seconds``: how often it looks without being told."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        channel: str,
        schema: str,
        duties: Duties,
        *,
        leads: bool,
        look_seconds: float,
    ) -> None:
        self._settings, self._channel, self._duties, self._leads = settings, channel, duties, leads
        self._key = lock_key("leader", schema)
        self._look_seconds = look_seconds
        self._connection: Connection | None = connection
        self._wake_end, self._told_end = os.pipe()
        os.set_blocking(self._told_end, False)
        self._due: float | None = None
        """Monotonic time of the next look that somebody asked for."""
        self._changing = threading.Lock()
        self._closed = False
        self.leading = False
        self.reconnections = 0
        self._thread = threading.Thread(target=self._run, name="agl-postgres-listener", daemon=True)

    def start(self) -> None:
        """Listen, try to lead, and go on in a thread."""
        assert self._connection is not None
        try:
            self._begin(self._connection)
        except (psycopg.Error, StoreError):  # the thread connects again
            self._lose()
        self._thread.start()

    def arm(self, delay: float) -> None:
        """Look in ``delay`` seconds, unless a look comes before. From any thread."""
        due = time.monotonic() + delay
        with self._changing:
            if self._due is not None and self._due <= due:
                return
            self._due = due
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._told_end, b"!")

    def _begin(self, connection: Connection) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._duties.heard(connection)
        self._try_to_lead(connection)

    def _try_to_lead(self, connection: Connection) -> None:
        if self._leads and not self.leading:
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone()
            if row is not None and row[0]:
                self._duties.lead()
                self.leading = True

    def _run(self) -> None:
        while not self._closed:
            try:
                if self._connection is None:
                    self._connection = connect_patiently(self._settings, 0.0, not self._leads)
                    self._begin(self._connection)
                    self._duties.look_again()
                self._turn(self._connection)
            except (psycopg.Error, StoreError, OSError):
                self._lose()
                self._pause()
            except Exception:
                _log.exception("the listener of the store failed; it goes on")
                self._pause()
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):  # another process leads at once
                self._connection.execute("SELECT pg_advisory_unlock_all()")
            self._connection.close()
        os.close(self._wake_end)
        os.close(self._told_end)

    def _turn(self, connection: Connection) -> None:
        """Wait for signals or the next look, and do what is due."""
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_end, selectors.EVENT_READ)
            for key, _ in selector.select(self._seconds_left()):
                if key.fd == self._wake_end:
                    os.read(self._wake_end, 4096)
        if self._closed:
            return
        for notice in connection.notifies(timeout=0.0):
            self._duties.received(notice.payload)
        if self._seconds_left() <= 0:
            with self._changing:
                late = time.monotonic() - (self._due or time.monotonic())
                self._due = time.monotonic() + self._look_seconds
            self._duties.heard(connection)
            self._try_to_lead(connection)
            if self.leading:
                self._duties.look(late)

    def _seconds_left(self) -> float:
        with self._changing:
            if self._due is None:
                self._due = time.monotonic() + self._look_seconds
            return min(self._look_seconds, max(0.0, self._due - time.monotonic()))

    def _lose(self) -> None:
        """The connection is lost, and leadership with it."""
        self.leading = False
        self.reconnections += 1
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _pause(self) -> None:
        if not self._closed:
            time.sleep(0.2)

    def close(self) -> None:
        """End the thread and its connection."""
        self._closed = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
