"""AgentScope adapter, for 1.0 and 2: every model call is recorded with the agent that made it.

It hooks into 1.0's agent call and toolkit, and the points of 2's agent that its middleware wraps, as
OpenTelemetry spans; core's wire layer records the token ids. Invariant: ``uninstrument`` leaves AgentScope as
it was.
"""

from __future__ import annotations

from agentlightning.capture.instrument.adapter import AdapterInstrumentor
from agl_agentscope.entries import entry_methods
from agl_agentscope.package import INSTRUMENTS

__all__ = ["AgentScopeInstrumentor", "entry_methods"]


class AgentScopeInstrumentor(AdapterInstrumentor):
    """Instruments the AgentScope that is installed; switches core's capture on where that is not done yet."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap what runs agents and tools in the version that is installed."""
        import agentscope.agent

        from agl_agentscope import v1, v2

        version = v1 if hasattr(agentscope.agent, "AgentBase") else v2
        version.patch_all(self)
