"""Microsoft Agent Framework adapter: every model call is recorded with the agent and node that made it.

The framework's own OpenTelemetry spans (``invoke_agent``, ``execute_tool``, workflows) name agents and tools,
and its streams take context managers. The adapter adds the tags and details that they lack; core's wire layer
records the token ids. Invariant: ``uninstrument`` leaves Agent Framework as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_agent_framework import tools, turns
from agl_agent_framework.package import INSTRUMENTS


class AgentFrameworkInstrumentor(AdapterInstrumentor):
    """Instruments Agent Framework; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Tag agents and nodes where the framework's spans do not name them, and complete its tool spans."""
        import agent_framework
        from agent_framework import AgentMiddlewareLayer, Executor, RawAgent

        self.patch(AgentMiddlewareLayer, "run", turns.run)
        self.patch(RawAgent, "run", turns.run)
        self.patch(Executor, "execute", turns.execute)
        invocation = getattr(agent_framework, "_tools", None)
        missing = "agent-framework-tool-details-unavailable"  # spans go on without their details
        self.patch_private(invocation, "_auto_invoke_function", tools.execute, missing)
