"""Registers the store under the schemes of PostgreSQL's own URLs."""

from __future__ import annotations

from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import StoreSpec

_SCHEMES = ("postgresql", "postgres")


def _writer(url: str) -> Any:
    from agl_postgres.store import PostgresStore

    return PostgresStore(url)


def _reader(url: str) -> Any:
    from agl_postgres.store import PostgresStore

    return PostgresStore(url, read_only=True)


@hookimpl
def agl_stores() -> list[StoreSpec]:
    return [StoreSpec(scheme, _writer, reader=_reader) for scheme in _SCHEMES]
