"""Connections to the server: opened, set up, and their errors told apart.

Acknowledged means committed: ``synchronous_commit`` is at least ``on``. A connection whose process or machine
is gone is closed by the server within half a minute, so that its locks do not outlive it.
"""

from __future__ import annotations

import re
import time
from typing import Any, TypeAlias

import psycopg
from psycopg import errors
from psycopg.adapt import Loader
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

from agentlightning.store.base import StoreError
from agl_postgres.settings import Settings

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
APPLICATION = "agentlightning"
_CONNECT_SECONDS = 10
_PAUSES = (0.05, 0.1, 0.2, 0.5)
"""Seconds between tries to reach a server; the last one again and again."""
_SETTINGS = {
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_WEAK = [("off",), ("local",), ("remote_write",)]
"""Rows of SHOW synchronous_commit under which a commit may be lost."""
_RETRIED = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
"""Errors after which the same write succeeds: another process was faster. It finds the key that exists."""
_ENDED = (errors.AdminShutdown, errors.CrashShutdown, errors.IdleInTransactionSessionTimeout)
_NEVER = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry|permission denied|"
    r"translate host name|root certificate|server does not support SSL|is not currently accepting"
)
"""What a server, or libpq, says about a connection that a later try does not get either."""
NULL_SIGN = "\u2400"
"""In place of a NUL in text, which PostgreSQL cannot hold."""


class _Text(StrDumperUnknown):
    """Text without NUL."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", NULL_SIGN) if "\0" in obj else obj)


class _Number(Loader):
    """Sums of whole numbers are ``numeric`` in PostgreSQL and ``int`` here."""

    def load(self, data: Any) -> int | float:
        text = bytes(data).decode()
        return float(text) if "." in text or "N" in text else int(text)


def is_lost(connection: Connection | None, error: BaseException | None) -> bool:
    """Return whether the error means that the connection, and not the statement, failed."""
    if not isinstance(error, psycopg.Error):
        return False
    broken = connection is None or connection.closed or connection.broken
    silent = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return broken or silent or isinstance(error, _ENDED)


def retry_name(error: BaseException) -> str | None:
    """Return under which name a retry after this error is counted; ``None``: it would fail again."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return type(cause).__name__ if isinstance(cause, _RETRIED) else None


def connect(settings: Settings, read_only: bool = False) -> Connection:
    """Open a connection. It commits each statement by itself, unless a transaction is begun."""
    connection: Connection = psycopg.connect(
        settings.conninfo,
        autocommit=True,
        connect_timeout=_CONNECT_SECONDS,
        fallback_application_name=APPLICATION,
    )
    try:
        _set_up(connection, settings, read_only)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: Connection, settings: Settings, read_only: bool) -> None:
    adapters = connection.adapters
    adapters.register_dumper(str, _Text)
    adapters.register_dumper(
        int, Int8Dumper
    )  # one type for all numbers, so that a statement is prepared once
    adapters.register_loader("numeric", _Number)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{settings.shown} has the encoding {encoding}: make a database in UTF8")
    wanted = {**_SETTINGS, **({"default_transaction_read_only": "on"} if read_only else {})}
    if connection.execute("SHOW synchronous_commit").fetchone() not in _WEAK:
        del wanted["synchronous_commit"]  # remote_apply says more than on
    for pair in wanted.items():
        connection.execute("SELECT set_config(%s, %s, false)", pair)


def connect_patiently(settings: Settings, patience: float, read_only: bool = False) -> Connection:
    """Open a connection; wait up to ``patience`` seconds for a server that is not there or still starts.
    Raise :class:`StoreError` that names the server and what it says.
    """
    until, pauses = time.monotonic() + patience, iter(_PAUSES)
    while True:
        try:
            return connect(settings, read_only)
        except psycopg.Error as error:
            if time.monotonic() >= until or not _may_come(error):
                said = str(error).strip()
                raise StoreError(f"{settings.shown} cannot be opened as a store: {said}") from None
        time.sleep(next(pauses, _PAUSES[-1]))


def _may_come(error: psycopg.Error) -> bool:
    """Return whether the server may accept a later try. libpq gives no code for a refused connection; a
    server that starts, stops, recovers or is full says so in many ways, one that will never accept in few.
    """
    return isinstance(error, psycopg.OperationalError) and not _NEVER.search(str(error))
