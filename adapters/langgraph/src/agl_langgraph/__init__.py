"""LangGraph adapter: every model call of a graph is recorded with the node and the agent that made it.

LangGraph runs on LangChain's callbacks and run configuration; so does this adapter, on LangChain's. It adds
what a graph knows: node, sub-graph, branch and step. Invariant: ``uninstrument`` leaves both as they were.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.install import install, installed, uninstall
from agl_langchain.runs import ANSWERED, READERS
from agl_langgraph.callers import CALLERS, remember_callers
from agl_langgraph.identity import entry_methods, identity, read_node
from agl_langgraph.package import INSTRUMENTS

__all__ = ["LangGraphInstrumentor", "entry_methods", "identity"]


class LangGraphInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments LangGraph; switches core's capture on where that is not done yet."""

    _switched_on = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return INSTRUMENTS

    def _instrument(self, **kwargs: Any) -> None:
        from agl_langchain.handler import open_door

        self._switched_on = not installed()
        install(kwargs.get("tracer_provider"))
        open_door()
        READERS.append(read_node)
        ANSWERED.append(remember_callers)

    def _uninstrument(self, **kwargs: Any) -> None:
        from agl_langchain.handler import close_door

        ANSWERED.remove(remember_callers)
        READERS.remove(read_node)
        CALLERS.clear()
        close_door()
        if self._switched_on:
            uninstall()
