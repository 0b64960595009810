"""AgentScope adapter, for 1.0 and 2: every model call is recorded with the agent that made it.

Native doors: 1.0's agent call and toolkit, and the points of 2's agent that its middleware wraps, as
OpenTelemetry spans; core's wire layer has the token ids. Invariant: ``uninstrument`` leaves AgentScope as it
was.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.identity import IDENTITY
from agentlightning.capture.install import install, installed, uninstall
from agentlightning.capture.patching import Patch
from agl_agentscope.identity import entry_methods, identity
from agl_agentscope.package import INSTRUMENTS

__all__ = ["AgentScopeInstrumentor", "entry_methods", "identity"]


class AgentScopeInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments the AgentScope that is installed; switches core's capture on where that is not done yet."""

    _patches: tuple[Patch, ...] = ()
    _switched_on = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return INSTRUMENTS

    def _instrument(self, **kwargs: Any) -> None:
        import agentscope.agent

        if hasattr(agentscope.agent, "AgentBase"):
            from agl_agentscope.v1 import patches
        else:
            from agl_agentscope.v2 import patches
        self._switched_on = not installed()
        install(kwargs.get("tracer_provider"))
        self._patches = tuple(patches())
        IDENTITY.append(identity)

    def _uninstrument(self, **kwargs: Any) -> None:
        IDENTITY.remove(identity)
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = ()
        if self._switched_on:
            uninstall()
