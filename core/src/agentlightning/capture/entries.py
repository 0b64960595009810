"""Entries: decorated functions and methods, whose outermost calls may be rollouts of their own.

``agl run --per-entry`` registers a wrapper before the program decorates anything. Without a wrapper, entries
stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Entry = Callable[..., Any]
ENTRY_WRAPPERS: list[Callable[[Entry], Entry]] = []
"""Wrappers of entries; each keeps an entry's kind (plain, coroutine, generator)."""


def undecorated(function: Entry) -> Entry:
    """Return the method under the wrapper of ``@agl.agent``; any other ``function`` as it is. Other wrappers
    copy the attribute, so it names the wrapper that it belongs to.
    """
    wrapper, method = getattr(function, "__agl_undecorated__", (None, function))
    return method if wrapper is function else function


def wrap_entry(entry: Entry) -> Entry:
    """Return ``entry`` in all :data:`ENTRY_WRAPPERS`."""
    for wrapper in ENTRY_WRAPPERS:
        entry = wrapper(entry)
    return entry
