"""AgentScope adapter, for 1.0 and 2: every model call is recorded with the agent that made it.

It wraps 1.0's agent call and toolkit, and the methods of 2's agent that its middleware wraps, in
OpenTelemetry spans. Core's wire layer records the token ids. Invariant: ``uninstrument`` leaves AgentScope
as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_agentscope.package import INSTRUMENTS


class AgentScopeInstrumentor(AdapterInstrumentor):
    """Instruments the AgentScope that is installed; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run agents and tools in the installed version."""
        import agentscope.agent

        from agl_agentscope import v1, v2

        version = v1 if hasattr(agentscope.agent, "AgentBase") else v2
        version.patch_all(self)
