"""``LightningStore``: open the store under its name in v0.3, at a path or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentlightning.plugins.stores import open_store

__all__ = ["LightningStore"]

if TYPE_CHECKING:
    from agl_cluster.store.client import StoreClient

    class LightningStore(StoreClient):
        """The type for type checkers: a store, made from a place or from nothing."""

        def __init__(self, place: str | Path | None = None) -> None: ...

else:

    class _Kind(type):
        def __call__(cls, place: str | Path | None = None) -> Any:
            """Return the store that :func:`open_store` opens at ``place``."""
            return open_store(place)

        def __instancecheck__(cls, instance: Any) -> bool:
            needed = ("enqueue_rollout", "query_spans", "close")
            return all(callable(getattr(instance, name, None)) for name in needed)

    class LightningStore(metaclass=_Kind):
        """``LightningStore()``: the durable store at ``AGL_STORAGE``, else in ``~/.agent-lightning``;
        ``LightningStore(place)``: a file, a folder, ``:memory:`` or a URL. Every store is an instance of it.
        """
