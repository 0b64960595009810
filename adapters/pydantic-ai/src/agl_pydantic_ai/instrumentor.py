"""Pydantic AI adapter: every model call of a ``pydantic_ai`` app is recorded with the agent that made it.

It wraps ``Agent.iter``, which every run calls, and uses the framework's hooks around model requests and
tools. Core's wire layer records the token ids. Invariant: ``uninstrument`` leaves Pydantic AI as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.delivery import IGNORED_SCOPES
from agl_pydantic_ai.package import INSTRUMENTS


class PydanticAIInstrumentor(AdapterInstrumentor):
    """Instruments Pydantic AI; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run agents and tools; ``uninstrument`` undoes each step."""
        from pydantic_ai import Agent

        from agl_pydantic_ai import turns

        self.patch(Agent, "iter", turns.iterate)
        IGNORED_SCOPES.add("pydantic-ai")  # its spans, if the user has them on, would repeat ours
        self.undo(IGNORED_SCOPES.discard, "pydantic-ai")
