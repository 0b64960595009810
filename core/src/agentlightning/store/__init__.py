"""The store: work, spans, calls, rewards and resources, durable before they are acknowledged.

``open_store`` opens the store at a place; its interface is :class:`~agentlightning.store.base.Store`.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentlightning.store.base import AttemptEnded, Conflict, NotFound, Store, StoreError

if TYPE_CHECKING:
    from agentlightning.plugins.manager import Plugins
    from agentlightning.store.http.client import StoreClient
    from agentlightning.store.sqlite.store import SQLiteStore

_LAZY = {
    "SQLiteStore": "agentlightning.store.sqlite.store",
    "StoreClient": "agentlightning.store.http.client",
}

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


def open_store(
    place: str | Path | None = None, *, read_only: bool = False, plugins: Plugins | None = None
) -> Store:
    """Open the store at a place: a file, a folder, ``:memory:``, or a URL of a scheme that a plugin registers
    (``sqlite:///…`` and ``http(s)://…`` are built in).

    One process writes a file; a second one is refused by an error that names the first. ``read_only``: read a
    file, also while another process writes it; a store behind another URL is opened as usual. The token of an
    HTTP store is taken from ``AGL_TOKEN``.

    ``None``: ``AGL_STORAGE``, else ``~/.agent-lightning/store.sqlite``. ``plugins``: where schemes are looked
    up; default: the process's own.
    """
    text = str(place if place is not None else os.environ.get("AGL_STORAGE") or "")
    scheme, is_url, _ = text.partition("://")
    if not is_url or (read_only and scheme == "sqlite"):
        from agentlightning.store.sqlite.store import SQLiteStore

        return SQLiteStore(text or None, read_only=read_only)
    if plugins is None:
        from agentlightning.plugins.manager import load

        plugins = load()
    if scheme not in plugins.stores:
        known = ", ".join(f"{name}://" for name in sorted(plugins.stores))
        raise StoreError(
            f"no store is registered for {scheme}://; give a file, a folder, :memory:, or a URL of {known}"
        )
    store: Store = plugins.stores[scheme].factory(text)
    return store
