"""The store: work, spans, calls, rewards and resources, durable before they are acknowledged.

:class:`~agentlightning.store.base.Store` is its interface. :func:`agentlightning.plugins.stores.open_store`
opens the store at a place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning._lazy import lazy_names
from agentlightning.store.base import (
    AttemptEnded as AttemptEnded,
    Conflict as Conflict,
    NotFound as NotFound,
    Store as Store,
    StoreError as StoreError,
)

if TYPE_CHECKING:
    from agentlightning.store.sqlite.store import SQLiteStore as SQLiteStore

__getattr__ = lazy_names(__name__, {"SQLiteStore": "sqlite.store"})
