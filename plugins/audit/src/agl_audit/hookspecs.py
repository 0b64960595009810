"""The hook of this plugin's own, and what it registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentlightning.hookspecs import hookspec


@dataclass(frozen=True, slots=True)
class ImportFormatSpec:
    """A format of traces: ``is_mine(first entry)``, and ``read(entries)``, which returns a list of
    ``history.importing.trace.ImportedTrace`` and raises ``UnreadableTrace``.
    """

    name: str
    about: str
    is_mine: Callable[[Any], bool]
    read: Callable[[Sequence[Any]], list[Any]]


@hookspec
def agl_import_formats() -> list[ImportFormatSpec]:  # type: ignore[empty-body]
    """Formats of traces that ``agl import`` reads."""
