"""The adapter behind the suite's only door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec
from agentlightning.types import Tags
from agl_autogen.package import INSTRUMENTS


def _instrumentor() -> Any:
    from agl_autogen import AutoGenInstrumentor

    return AutoGenInstrumentor()


def _identity() -> Tags:
    from agl_autogen.identity import identity

    return identity()


def _entry_methods(cls: type) -> Sequence[str]:
    from agl_autogen.identity import entry_methods

    return entry_methods(cls)


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """AutoGen."""
    return [
        AdapterSpec(
            name="autogen",
            framework="autogen_agentchat",
            instrumentor=_instrumentor,
            identity=_identity,
            entry_methods=_entry_methods,
            requires=", ".join(INSTRUMENTS),
        )
    ]
