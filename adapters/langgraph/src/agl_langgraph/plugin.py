"""The adapter behind the suite's only door."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec
from agl_langgraph import LangGraphInstrumentor, entry_methods, identity
from agl_langgraph.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """LangGraph."""
    return [
        AdapterSpec(
            name="langgraph",
            framework="langgraph",
            instrumentor=LangGraphInstrumentor,
            identity=identity,
            entry_methods=entry_methods,
            requires=", ".join(INSTRUMENTS),
        )
    ]
