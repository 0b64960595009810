"""The adapter behind the suite's only door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec
from agentlightning.types import Tags
from agl_agentscope.package import INSTRUMENTS


def _instrumentor() -> Any:
    from agl_agentscope import AgentScopeInstrumentor

    return AgentScopeInstrumentor()


def _identity() -> Tags:
    from agl_agentscope.identity import identity

    return identity()


def _entry_methods(cls: type) -> Sequence[str]:
    from agl_agentscope.identity import entry_methods

    return entry_methods(cls)


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """AgentScope, 1.0 and 2."""
    return [
        AdapterSpec(
            name="agentscope",
            framework="agentscope",
            instrumentor=_instrumentor,
            identity=_identity,
            entry_methods=_entry_methods,
            requires=", ".join(INSTRUMENTS),
        )
    ]
