"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_langgraph.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """LangGraph."""
    return [
        AdapterSpec(
            name="langgraph",
            framework="langgraph",
            instrumentor=lazily("agl_langgraph.instrumentor:LangGraphInstrumentor"),
            entry_methods=lazily("agl_langchain.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
