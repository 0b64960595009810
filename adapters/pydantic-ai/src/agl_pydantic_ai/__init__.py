"""Pydantic AI adapter: every model call of a ``pydantic_ai`` app is recorded with the agent that made it.

It hooks into ``Agent.iter``, which every run passes, and the framework's hooks around what a run does. Core's
wire layer records the token ids. Invariant: ``uninstrument`` leaves Pydantic AI as it was.
"""

from __future__ import annotations

from agentlightning.capture.instrument.adapter import AdapterInstrumentor
from agentlightning.capture.spans.processors import IGNORED_SCOPES
from agl_pydantic_ai.entries import entry_methods
from agl_pydantic_ai.package import INSTRUMENTS

__all__ = ["PydanticAIInstrumentor", "entry_methods"]


class PydanticAIInstrumentor(AdapterInstrumentor):
    """Instruments Pydantic AI; switches core's capture on where that is not done yet."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap what runs agents and tools; each step is undone by ``uninstrument``."""
        from pydantic_ai import Agent

        from agl_pydantic_ai import turns

        self.patch(Agent, "iter", turns.iterate)
        IGNORED_SCOPES.add("pydantic-ai")  # its spans say the same again, where the user has them on
        self.undo(IGNORED_SCOPES.discard, "pydantic-ai")
