"""smolagents adapter: every model call of a ``smolagents`` app is recorded with the agent that made it.

It wraps ``MultiStepAgent.run``, and the methods that run tools for an agent or for its code. Core's wire
layer records the token ids. Invariant: ``uninstrument`` leaves smolagents as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_smolagents import tools, turns
from agl_smolagents.package import INSTRUMENTS


class SmolagentsInstrumentor(AdapterInstrumentor):
    """Instruments smolagents; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run agents and tools; ``uninstrument`` undoes each step."""
        from smolagents import MultiStepAgent, Tool, ToolCallingAgent

        self.patch(MultiStepAgent, "run", turns.run)
        self.patch(ToolCallingAgent, "process_tool_calls", tools.requested)
        self.patch(ToolCallingAgent, "execute_tool_call", tools.execute)
        self.patch(Tool, "__call__", tools.call)
