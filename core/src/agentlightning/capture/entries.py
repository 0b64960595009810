"""Entries: decorated functions and methods, whose outermost calls may be rollouts of their own.

Whoever opens rollouts for them (a program under ``agl run --per-entry``) puts a wrapper here before the
program decorates anything; nobody else does, and then entries are what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Entry = Callable[..., Any]
ENTRY_WRAPPERS: list[Callable[[Entry], Entry]] = []
"""What is put around entries; it keeps their kind (plain, coroutine, generator)."""


def undecorated(function: Entry) -> Entry:
    """What is under the wrapper of ``@agl.agent``, if ``function`` is one; wrappers of others copy the
    attribute and stay.
    """
    wrapper, method = getattr(function, "__agl_undecorated__", (None, function))
    return method if wrapper is function else function


def wrap_entry(entry: Entry) -> Entry:
    """``entry`` as it is to be called."""
    for wrapper in ENTRY_WRAPPERS:
        entry = wrapper(entry)
    return entry
