"""The adapter behind the suite's only door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec
from agentlightning.types import Tags
from agl_agent_framework.package import INSTRUMENTS


def _instrumentor() -> Any:
    from agl_agent_framework import AgentFrameworkInstrumentor

    return AgentFrameworkInstrumentor()


def _identity() -> Tags:
    from agl_agent_framework.identity import identity

    return identity()


def _entry_methods(cls: type) -> Sequence[str]:
    from agl_agent_framework.identity import entry_methods

    return entry_methods(cls)


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """Microsoft Agent Framework."""
    return [
        AdapterSpec(
            name="agent-framework",
            framework="agent_framework",
            instrumentor=_instrumentor,
            identity=_identity,
            entry_methods=_entry_methods,
            requires=", ".join(INSTRUMENTS),
        )
    ]
