"""The plugin that registers the adapters."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_autogen.package import CORE, INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """AutoGen, and its core alone."""
    return [
        AdapterSpec(
            name="autogen",
            framework="autogen_agentchat",
            instrumentor=lazily("agl_autogen.instrumentor:AutoGenInstrumentor"),
            entry_methods=lazily("agl_autogen.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        ),
        AdapterSpec(
            name="autogen-core",
            framework="autogen_core",
            instrumentor=lazily("agl_autogen.instrumentor:AutoGenCoreInstrumentor"),
            entry_methods=lazily("agl_autogen.entries:core_entry_methods"),
            requires=", ".join(CORE),
        ),
    ]
