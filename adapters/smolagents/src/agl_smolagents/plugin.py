"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_smolagents.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """smolagents."""
    return [
        AdapterSpec(
            name="smolagents",
            framework="smolagents",
            instrumentor=lazily("agl_smolagents.instrumentor:SmolagentsInstrumentor"),
            entry_methods=lazily("agl_smolagents.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
