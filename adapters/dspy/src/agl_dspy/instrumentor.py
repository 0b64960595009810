"""DSPy adapter: every model call of a ``dspy`` program is recorded with the module that made it.

It wraps the calls of modules and tools, keeps cached answers out of rollouts, and has DSPy 3.4 use the
openai SDK there, where core's wire layer records token ids. Invariant: ``uninstrument`` leaves DSPy as it
was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_dspy import models, tools, turns
from agl_dspy.package import INSTRUMENTS


class DSPyInstrumentor(AdapterInstrumentor):
    """Instruments DSPy; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run modules and tools, and those that answer in place of the model."""
        from dspy import Module, Tool
        from dspy.clients.cache import Cache

        self.patch(Module, "__call__", turns.call)
        self.patch(Module, "acall", turns.acall)
        self.patch(Tool, "__call__", tools.call)
        self.patch(Tool, "acall", tools.acall)
        self.patch(Cache, "get", models.read_cache)
        self.patch(Cache, "put", models.write_cache)
        for place in models.selecting():
            self.patch(place, "select_backend", models.select)
