"""The adapter behind the suite's only door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec
from agentlightning.types import Tags
from agl_openai_agents.package import INSTRUMENTS


def _instrumentor() -> Any:
    from agl_openai_agents import OpenAIAgentsInstrumentor

    return OpenAIAgentsInstrumentor()


def _identity() -> Tags:
    from agl_openai_agents.identity import identity

    return identity()


def _entry_methods(cls: type) -> Sequence[str]:
    from agl_openai_agents.identity import entry_methods

    return entry_methods(cls)


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """The OpenAI Agents SDK."""
    return [
        AdapterSpec(
            name="openai-agents",
            framework="agents.tracing",  # `agents` alone is also what people call folders of their own
            instrumentor=_instrumentor,
            identity=_identity,
            entry_methods=_entry_methods,
            requires=", ".join(INSTRUMENTS),
        )
    ]
