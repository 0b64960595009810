"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_pydantic_ai.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """Pydantic AI."""
    return [
        AdapterSpec(
            name="pydantic-ai",  # for Trainer(adapters=["pydantic-ai"]) and agl run --adapter pydantic-ai
            framework="pydantic_ai",  # the module whose import makes the adapter active
            instrumentor=lazily("agl_pydantic_ai.instrumentor:PydanticAIInstrumentor"),
            entry_methods=lazily("agl_pydantic_ai.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
