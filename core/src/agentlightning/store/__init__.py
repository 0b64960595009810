"""The store: work, spans, calls, rewards and resources, durable before they are acknowledged.

:class:`~agentlightning.store.base.Store` is its interface. :func:`agentlightning.plugins.stores.open_store`
opens the store at a place.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentlightning.store.base import (
    AttemptEnded as AttemptEnded,
    Conflict as Conflict,
    NotFound as NotFound,
    Store as Store,
    StoreError as StoreError,
)

if TYPE_CHECKING:
    from agentlightning.store.http.client import StoreClient as StoreClient
    from agentlightning.store.sqlite.store import SQLiteStore as SQLiteStore

_LAZY = {
    "SQLiteStore": "agentlightning.store.sqlite.store",
    "StoreClient": "agentlightning.store.http.client",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
