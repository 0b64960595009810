"""Opening a store by its place: a file, or a URL of a scheme that a plugin registers."""

from __future__ import annotations

from pathlib import Path

from agentlightning.plugins import manager
from agentlightning.plugins.suite import install_line
from agentlightning.store.base import Store, StoreError
from agentlightning.store.places import is_artifact_place, store_place


def open_store(
    place: str | Path | None = None, *, read_only: bool = False, plugins: manager.Plugins | None = None
) -> Store:
    """Open the store at a place: a file, a folder, ``:memory:``, or a URL of a scheme that a plugin registers
    (``sqlite:///…`` is built in; ``http(s)://…`` comes with agl-cluster, ``postgresql://…`` with
    agl-postgres).

    One process writes a file; a second writer is refused with an error that names the first. ``read_only``:
    read a file, also while another process writes it, or a database.

    ``place=None`` means ``AGL_STORAGE``, else ``~/.agent-lightning/store.sqlite``. ``plugins`` registers the
    schemes; the default is the process's own plugins.

    Raises :class:`StoreError` for a scheme that no plugin registers.
    """
    text = str(place if place is not None else store_place() or "")
    scheme, is_url, _ = text.partition("://")
    if not is_url or (read_only and scheme == "sqlite"):
        from agentlightning.store.sqlite.store import SQLiteStore

        return SQLiteStore(text or None, read_only=read_only)
    stores = (plugins or manager.load()).stores
    if scheme not in stores:
        if is_artifact_place(text):
            raise StoreError(
                f"{text} keeps files and is no store: give it as AGL_STORAGE, and a file or URL as the store"
            )
        known = ", ".join(f"{name}://" for name in sorted(stores))
        line = install_line("store", scheme)
        how = f"; to install it, in a checkout: {line}" if line else ""
        raise StoreError(
            f"no store is registered for {scheme}://; give a file, a folder, :memory:, or a URL of {known}"
            + how
        )
    spec = stores[scheme]
    store: Store = (spec.reader or spec.factory)(text) if read_only else spec.factory(text)
    return store
