"""LangGraph adapter: every model call of a graph is recorded with the node and the agent that made it.

LangGraph uses LangChain's callbacks and run configuration, and this adapter uses LangChain's adapter. It adds
the tags of a graph: node, sub-graph, branch and step. Invariant: ``uninstrument`` leaves both frameworks as
they were.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_langchain.runs import ANSWER_LISTENERS, RUN_READERS
from agl_langgraph.callers import CALLERS, remember_callers
from agl_langgraph.nodes import read_node
from agl_langgraph.package import INSTRUMENTS


class LangGraphInstrumentor(AdapterInstrumentor):
    """Instruments LangGraph; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Register LangChain's handler, and read graphs from its callbacks."""
        from agl_langchain.handler import register, unregister

        register()
        self.undo(unregister)
        self.undo(CALLERS.clear)
        self.add(RUN_READERS, read_node)
        self.add(ANSWER_LISTENERS, remember_callers)
