"""Begins capture in a program that ``opentelemetry-instrument`` starts under ``agl run``.

The ``sitecustomize`` of ``opentelemetry-instrument`` hides the one of ``agl run``, but it activates every
installed instrumentor. This instrumentor installs the import hook. Outside ``agl run`` it does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agl_programs.inside.import_hook import WATCH_VARIABLE
from agl_programs.inside.watch import watch


class ProgramInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Installs the import hook, once in a process."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependency: the import hook waits for packages itself."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        if os.environ.get(WATCH_VARIABLE):
            watch()

    def _uninstrument(self, **kwargs: Any) -> None:
        """Do nothing: capture lasts as long as the process."""
