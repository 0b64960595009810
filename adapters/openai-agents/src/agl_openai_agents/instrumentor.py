"""OpenAI Agents SDK adapter: every model call of an ``openai-agents`` app is recorded with its agent.

It adds a ``TracingProcessor`` beside the user's own; with tracing disabled, it patches the no-op spans that
the SDK makes in the same places. Core's wire layer records the token ids. Invariant: ``uninstrument``
leaves the SDK as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_openai_agents.package import INSTRUMENTS


class OpenAIAgentsInstrumentor(AdapterInstrumentor):
    """Instruments the SDK; switches core's capture on unless it is on.

    Whether models are asked by Responses or by chat completions is the user's choice: both are recorded.
    """

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Add our processor to the SDK's tracing, and patch the spans that it does not trace."""
        from agents import add_trace_processor

        from agl_openai_agents.bridge import BRIDGE
        from agl_openai_agents.untraced import patch_all, remove_bridge

        BRIDGE.active = True
        self.undo(setattr, BRIDGE, "active", False)
        add_trace_processor(BRIDGE)
        self.undo(remove_bridge)
        patch_all(self)
