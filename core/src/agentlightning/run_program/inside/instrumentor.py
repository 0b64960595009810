"""Capture where ``opentelemetry-instrument`` starts a program under ``agl run``.

Its bootstrap hides ours, but it switches on every instrumentor that is installed: this one does what ours
would have done. In a program that ``agl run`` did not start it does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.run_program.inside.import_hook import WATCH_VARIABLE, watch


class ProgramInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Begins capture in a process of a program, once."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: it instruments what is imported."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        if os.environ.get(WATCH_VARIABLE):
            watch()

    def _uninstrument(self, **kwargs: Any) -> None:
        """Capture in a program lasts as long as its process."""
