"""Strands adapter: every model call of a ``strands`` app is recorded with the agent that made it.

It wraps the two methods that every turn passes, and the executor of tools. Core's wire layer records
the token ids. Invariant: ``uninstrument`` leaves Strands Agents as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.delivery import IGNORED_SCOPES
from agl_strands_agents import tools, turns
from agl_strands_agents.package import INSTRUMENTS

SCOPE = "strands.telemetry.tracer"
"""The framework's own spans, which stay current while a reader works: they would repeat ours."""


class StrandsInstrumentor(AdapterInstrumentor):
    """Instruments Strands Agents; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run agents and tools; ``uninstrument`` undoes each step."""
        from strands import Agent
        from strands.tools.executors._executor import ToolExecutor

        self.patch(Agent, "stream_async", turns.stream)
        missing = "strands-structured-output-unnamed"
        self.patch_private(Agent, "structured_output_async", turns.structured, missing)
        self.patch_private(ToolExecutor, "_stream", tools.stream, "strands-tool-spans-unavailable")
        IGNORED_SCOPES.add(SCOPE)
        self.undo(IGNORED_SCOPES.discard, SCOPE)
