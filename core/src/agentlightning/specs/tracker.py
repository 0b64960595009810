"""Trackers: where the reports of a run go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentlightning.types import Evaluation, StepReport

if TYPE_CHECKING:  # pydantic is not imported for it
    from pydantic import BaseModel


class Tracker(Protocol):
    """Receives the reports of a run. Errors are counted, never fatal.

    A tracker may have more: ``resumed(run, reports, evaluations)`` gets the reports and evaluations up to the
    checkpoint of a run that resumes (others get ``start`` again); ``failed(error)`` learns that the run ended
    with an error; ``close()`` is called last, however the run ended. ``report_to(failed)`` is called first:
    ``failed(error, calls)`` may be told from any thread of calls that fail later.
    """

    def start(self, run: Mapping[str, Any]) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def evaluated(self, evaluation: Evaluation) -> None: ...
    def finish(self, summary: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class TrackerSpec:
    """A tracker by name: ``factory(folder) -> Tracker``; with ``options``, ``factory(folder, options)``."""

    name: str
    factory: Callable[..., Tracker]
    """``folder``: the run's own. It raises UsageError for what a person can mend before the run begins, e.g.
    a library that is not installed.
    """
    default: bool = False
    """On unless the run names trackers."""
    instead_of: str = ""
    """A default tracker that is off where this one is installed, unless the run names it."""
    options: Callable[[], type[BaseModel]] | None = None
    """Imports and returns the pydantic model of its options; ``None``: it has none."""
    about: str = ""
