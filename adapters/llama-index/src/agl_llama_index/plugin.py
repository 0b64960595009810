"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_llama_index.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """LlamaIndex."""
    return [
        AdapterSpec(
            name="llama-index",  # for Trainer(adapters=["llama-index"]) and agl run --adapter llama-index
            framework="llama_index.core",  # the module whose import makes the adapter active
            instrumentor=lazily("agl_llama_index.instrumentor:LlamaIndexInstrumentor"),
            entry_methods=lazily("agl_llama_index.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
