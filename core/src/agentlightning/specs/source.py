"""Where tasks, policies, stores and imported traces come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, slots=True)
class TaskSetSpec:
    """Tasks by name: ``factory()`` returns a task set, which has ``train`` and ``val``."""

    name: str
    factory: Callable[[], Any]
    about: str = ""


@dataclass(frozen=True, slots=True)
class ImportFormatSpec:
    """A format of traces: ``is_mine(first entry)``, and ``read(entries)``, which returns a list of
    ``history.importing.trace.ImportedTrace`` and raises ``UnreadableTrace``.
    """

    name: str
    about: str
    is_mine: Callable[[Any], bool]
    read: Callable[[Sequence[Any]], list[Any]]
