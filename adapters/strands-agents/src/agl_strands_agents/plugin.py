"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_strands_agents.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """Strands Agents."""
    return [
        AdapterSpec(
            name="strands-agents",
            framework="strands",
            instrumentor=lazily("agl_strands_agents.instrumentor:StrandsInstrumentor"),
            entry_methods=lazily("agl_strands_agents.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
