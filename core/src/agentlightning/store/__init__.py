"""The store: work, spans, calls, rewards and resources, durable before they are acknowledged.

``open_store`` makes one from a place; the interface is :class:`~agentlightning.store.base.Store`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentlightning.store.base import AttemptEnded, Conflict, NotFound, Store, StoreError

if TYPE_CHECKING:
    from agentlightning.store.client import StoreClient
    from agentlightning.store.sqlite import SQLiteStore

_LAZY = {"SQLiteStore": "agentlightning.store.sqlite", "StoreClient": "agentlightning.store.client"}

__all__ = [
    "AttemptEnded",
    "Conflict",
    "NotFound",
    "SQLiteStore",
    "Store",
    "StoreClient",
    "StoreError",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open_store(place: str | Path | None = None) -> Store:
    """The store at a place: a file, a folder, ``sqlite:///…``, ``:memory:`` or ``http(s)://…``.

    ``None``: ``AGL_STORAGE``, else ``~/.agent-lightning/store.sqlite``.
    """
    import os

    text = str(place if place is not None else os.environ.get("AGL_STORAGE") or "")
    if text.startswith(("http://", "https://")):
        from agentlightning.store.client import StoreClient

        return StoreClient(text)
    if "://" in text and not text.startswith("sqlite://"):
        raise StoreError(
            f"cannot open a store at {text!r}: give a file, a folder, sqlite:///path, :memory:, or http://host:port"
        )
    from agentlightning.store.sqlite import SQLiteStore

    return SQLiteStore(text or None)
