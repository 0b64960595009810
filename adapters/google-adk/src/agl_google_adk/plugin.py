"""The plugin that registers the adapter."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec, lazily
from agl_google_adk.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """Google ADK."""
    return [
        AdapterSpec(
            name="google-adk",  # for Trainer(adapters=["google-adk"]) and agl run --adapter google-adk
            framework="google.adk",  # the module whose import makes the adapter active
            instrumentor=lazily("agl_google_adk.instrumentor:GoogleADKInstrumentor"),
            entry_methods=lazily("agl_google_adk.entries:entry_methods"),
            requires=", ".join(INSTRUMENTS),
        )
    ]
