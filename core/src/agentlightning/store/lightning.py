"""``LightningStore``: the store under the seed project's name, made from a place or from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentlightning.store import open_store

__all__ = ["LightningStore"]

if TYPE_CHECKING:
    from agentlightning.store.local import LocalStore as LightningStore
else:

    class _Kind(type):
        def __call__(cls, place: str | Path | None = None, **options: Any) -> Any:
            """What :func:`open_store` makes of ``place``; with ``options``, a file of this process alone."""
            if options:
                from agentlightning.store.sqlite import SQLiteStore

                return SQLiteStore(place, **options)
            return open_store(place)

        def __instancecheck__(cls, instance: Any) -> bool:
            return all(
                callable(getattr(instance, n, None)) for n in ("enqueue_rollout", "query_spans", "close")
            )

    class LightningStore(metaclass=_Kind):
        """``LightningStore()``: the durable store at ``AGL_STORAGE``, else in ``~/.agent-lightning``;
        ``LightningStore(place)``: a file, a folder, ``:memory:`` or a URL. Every store is an instance of it.
        """
