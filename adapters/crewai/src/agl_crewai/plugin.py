"""The adapter behind the suite's only door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec
from agentlightning.types import Tags
from agl_crewai.package import INSTRUMENTS


def _instrumentor() -> Any:
    from agl_crewai import CrewAIInstrumentor

    return CrewAIInstrumentor()


def _identity() -> Tags:
    from agl_crewai.identity import identity

    return identity()


def _entry_methods(cls: type) -> Sequence[str]:
    from agl_crewai.identity import entry_methods

    return entry_methods(cls)


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """CrewAI."""
    return [
        AdapterSpec(
            name="crewai",
            framework="crewai",
            instrumentor=_instrumentor,
            identity=_identity,
            entry_methods=_entry_methods,
            requires=", ".join(INSTRUMENTS),
        )
    ]
