"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_tinyagents.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """TinyAgents."""
    return [
        AdapterSpec(
            name="tinyagents",  # for Trainer(adapters=["tinyagents"]) and agl run --adapter tinyagents
            framework="tinyagents",  # the module whose import makes the adapter active
            instrumentor=lazily("agl_tinyagents.instrumentor:TinyAgentsInstrumentor"),
            entry_methods=lazily("agl_tinyagents.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
