"""The hooks of this plugin's own, and what they register."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentlightning.hookspecs import hookspec
from agentlightning.types import Batch, Recipe


@dataclass(frozen=True, slots=True)
class ImportFormatSpec:
    """A format of traces: ``is_mine(first entry)``, and ``read(entries)``, which returns a list of
    ``history.importing.trace.ImportedTrace`` and raises ``UnreadableTrace``.
    """

    name: str
    about: str
    is_mine: Callable[[Any], bool]
    read: Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class RecordedEditSpec:
    """What edits the batches of a run (hook ``agl_batch_edits``), by the name that its links have after the
    step's. ``again(batch, recipe, body)`` makes the edit again from credit's batch and the body of the link,
    whose ``left_out`` has call id → reason of the calls that it takes out; reasons begin with the name and a
    dash. For explanations it may put into ``Row.metadata`` what it was told: ``tokens``, name → a number for
    each token, and ``hint``, a text.
    """

    name: str
    again: Callable[[Batch, Recipe, Mapping[str, Any]], Batch]


@hookspec
def agl_import_formats() -> list[ImportFormatSpec]:  # type: ignore[empty-body]
    """Formats of traces that ``agl import`` reads."""


@hookspec
def agl_recorded_edits() -> list[RecordedEditSpec]:  # type: ignore[empty-body]
    """Edits of batches that ``agl verify``, ``agl explain`` and the dashboard make again."""
