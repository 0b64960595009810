"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_agent_framework.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """Microsoft Agent Framework."""
    return [
        AdapterSpec(
            name="agent-framework",
            framework="agent_framework",
            instrumentor=lazily("agl_agent_framework.instrumentor:AgentFrameworkInstrumentor"),
            entry_methods=lazily("agl_agent_framework.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
