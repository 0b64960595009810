"""What a URL says: where the database is, and how this process uses it. No error shows a password."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from agentlightning.child_environment import store_password
from agentlightning.redaction import redacted
from agentlightning.store.base import StoreError
from agentlightning.store.places import patience_from_env

_OPTIONS = {"agl_writers": 2, "agl_readers": 2}
"""Options of ours in a URL's query, and their defaults; libpq knows the others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A database, and how this process uses it."""

    conninfo: str = field(repr=False)
    """What libpq takes; it may hold a password."""
    shown: str
    """The URL without its password."""
    writers: int = 2
    """Connections that commit writes."""
    readers: int = 2
    """Connections that answer queries."""
    patience: float = 60.0
    """Seconds to wait for a server that does not answer: ``AGL_STORE_PATIENCE``."""


def settings_of(url: str) -> Settings:
    """Read ``postgresql://user@host:port/database?agl_writers=2``. Raise :class:`StoreError` for mistakes."""
    shown = redacted(url)
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise StoreError(f"{shown} is no URL of a PostgreSQL database: postgresql://user@host/name") from None
    if "@" in parts.path:  # a password with a slash: libpq would take its beginning for a port, and say it
        raise _unreadable(shown)
    ours = {name: value for name, value in query if name.startswith("agl_")}
    for name, value in ours.items():
        if name not in _OPTIONS:
            raise StoreError(f"{shown}: there is no option {name}; one of {', '.join(_OPTIONS)}")
        if not value.isdigit() or not int(value):
            raise StoreError(f"{shown}: {name} must be a whole number from 1, not {value!r}")
    rest = urlencode([(name, value) for name, value in query if name not in ours], safe="/,")
    conninfo = urlunsplit(parts._replace(query=rest.replace("+", "%20")))
    if not _is_read(conninfo):
        raise _unreadable(shown)
    writers, readers = (int(ours.get(name, default)) for name, default in _OPTIONS.items())
    return Settings(_with_password(conninfo), shown, writers, readers, patience_from_env())


def _is_read(conninfo: str) -> bool:
    """Return whether libpq can read it. Its error may repeat the password, so that none is passed on."""
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        return False
    return True


def _with_password(conninfo: str) -> str:
    """Return it with the password in ``PGPASSWORD``, where libpq would look for it: agents do not inherit the
    variable, and libpq does not find it any more.
    """
    known = conninfo_to_dict(conninfo)
    if "password" in known or "service" in known or "PGSERVICE" in os.environ:
        return conninfo
    password = store_password("PGPASSWORD")
    return conninfo if password is None else make_conninfo(conninfo, password=password)


def _unreadable(shown: str) -> StoreError:
    return StoreError(
        f"{shown} cannot be read as a URL of PostgreSQL. Percent-encode special characters of user and "
        "password, or leave the password out: PGPASSWORD and ~/.pgpass hold it too"
    )
