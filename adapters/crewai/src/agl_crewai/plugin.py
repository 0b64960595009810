"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_crewai.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """CrewAI."""
    return [
        AdapterSpec(
            name="crewai",
            framework="crewai",
            instrumentor=lazily("agl_crewai.instrumentor:CrewAIInstrumentor"),
            entry_methods=lazily("agl_crewai.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
