"""TinyAgents adapter: every model call of a ``tinyagents`` app is recorded with the agent that made it.

It wraps the methods that run an ``Agent`` and its tools. Core's wire layer records the token ids.
Invariant: ``uninstrument`` leaves TinyAgents as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_tinyagents import turns
from agl_tinyagents.package import INSTRUMENTS


class TinyAgentsInstrumentor(AdapterInstrumentor):
    """Instruments TinyAgents; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run agents and tools; ``uninstrument`` undoes each step."""
        from tinyagents import Agent

        self.patch(Agent, "run", turns.run)
        self.patch(Agent, "stream", turns.stream)
        missing = "tinyagents-tool-spans-unavailable"  # private: a later version may do without
        self.patch_private(Agent, "_call_tool", turns.call_tool, missing)
