"""LangChain adapter: every model call of a LangChain app is recorded with the agent that made it.

LangChain's callbacks report agents and tools, and its run configuration tells which of them is calling.
Core's wire layer records the token ids. The adapter patches nothing. Invariant: ``uninstrument`` leaves
LangChain as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_langchain.package import INSTRUMENTS


class LangChainInstrumentor(AdapterInstrumentor):
    """Instruments LangChain; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Register the callback handler."""
        from agl_langchain.handler import register, unregister

        register()
        self.undo(unregister)
