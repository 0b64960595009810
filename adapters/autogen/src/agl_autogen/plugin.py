"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_autogen.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """AutoGen."""
    return [
        AdapterSpec(
            name="autogen",
            framework="autogen_agentchat",
            instrumentor=lazily("agl_autogen:AutoGenInstrumentor"),
            entry_methods=lazily("agl_autogen.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
