"""Google ADK adapter: every model call of a ``google.adk`` app is recorded with the agent that made it.

It wraps ``BaseAgent.run_async``, which every turn passes, and the framework's own callbacks around tools.
Core's wire layer records the token ids. Invariant: ``uninstrument`` leaves Google ADK as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.delivery import IGNORED_SCOPES
from agl_google_adk import tools, turns
from agl_google_adk.package import INSTRUMENTS

SCOPE = "gcp.vertex.agent"
"""The framework's own spans, with whole requests as text: they would repeat ours and the wire layer's."""


class GoogleADKInstrumentor(AdapterInstrumentor):
    """Instruments Google ADK; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run agents, nodes and tools; ``uninstrument`` undoes each step."""
        from google.adk.agents import BaseAgent
        from google.adk.plugins.plugin_manager import PluginManager

        self.patch(BaseAgent, "run_async", turns.run)
        self.patch(PluginManager, "run_before_tool_callback", tools.before)
        self.patch(PluginManager, "run_on_tool_error_callback", tools.failed)
        if node := turns.node_class():
            self.patch(node, "run", turns.run_node)
        IGNORED_SCOPES.add(SCOPE)
        self.undo(IGNORED_SCOPES.discard, SCOPE)
