"""Where policies and stores come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store by URL scheme: ``factory(url) -> Store``."""

    scheme: str
    factory: Callable[[str], Any]
    reader: Callable[[str], Any] | None = None
    """Opens a store that is only read; ``None``: as any other."""


@dataclass(frozen=True, slots=True)
class StoreOperationSpec:
    """An operation that every store gets: ``await store.<name>(…)``. ``operation()`` imports the function
    (:func:`agentlightning.store.sql.core.everywhere`); ``verb``, ``path`` and ``least`` are how a server
    offers it, and to which role: ``GET``, ``/statistics``, ``runner``.
    """

    name: str
    operation: Callable[[], Any]
    verb: str
    path: str
    least: str


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A pretrained policy by name: ``fetch()`` returns its folder, downloaded on first use. With ``prefix``,
    ``name`` is how further names begin, and ``fetch(rest)`` gets what follows it.
    """

    name: str
    fetch: Callable[..., Path]
    about: str = ""
    prefix: bool = False
