"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_dspy.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """DSPy."""
    return [
        AdapterSpec(
            name="dspy",
            framework="dspy",
            instrumentor=lazily("agl_dspy.instrumentor:DSPyInstrumentor"),
            entry_methods=lazily("agl_dspy.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
