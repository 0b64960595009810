"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_agentscope.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """AgentScope, 1.0 and 2."""
    return [
        AdapterSpec(
            name="agentscope",
            framework="agentscope",
            instrumentor=lazily("agl_agentscope.instrumentor:AgentScopeInstrumentor"),
            entry_methods=lazily("agl_agentscope.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
