"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_openai_agents.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """The OpenAI Agents SDK."""
    return [
        AdapterSpec(
            name="openai-agents",
            framework="agents.tracing",  # `agents` alone is also what people call folders of their own
            instrumentor=lazily("agl_openai_agents.instrumentor:OpenAIAgentsInstrumentor"),
            entry_methods=lazily("agl_openai_agents.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
