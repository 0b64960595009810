"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_langchain.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """LangChain."""
    return [
        AdapterSpec(
            name="langchain",
            framework="langchain_core",
            instrumentor=lazily("agl_langchain.instrumentor:LangChainInstrumentor"),
            entry_methods=lazily("agl_langchain.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
