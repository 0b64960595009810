"""Microsoft Agent Framework adapter: every model call is recorded with the agent and node that made it.

Native doors: the framework's own OpenTelemetry spans (``invoke_agent``, ``execute_tool``, workflows) name
agents and tools, its streams take context managers; core's wire layer has the token ids. Invariant:
``uninstrument`` leaves Agent Framework as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.identity import IDENTITY
from agentlightning.capture.install import install, installed, uninstall
from agentlightning.capture.patching import Patch
from agentlightning.capture.processors import FINISHERS
from agentlightning.capture.tool_spans import hold
from agl_agent_framework import tools
from agl_agent_framework.identity import entry_methods, execute, identity, run
from agl_agent_framework.package import INSTRUMENTS

__all__ = ["AgentFrameworkInstrumentor", "entry_methods", "identity"]


class AgentFrameworkInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments Agent Framework; switches core's capture on where that is not done yet."""

    _patches: tuple[Patch, ...] = ()
    _switched_on = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return INSTRUMENTS

    def _instrument(self, **kwargs: Any) -> None:
        import agent_framework
        from agent_framework import AgentMiddlewareLayer, Executor, RawAgent

        self._switched_on = not installed()
        install(kwargs.get("tracer_provider"))
        patches = [
            Patch(AgentMiddlewareLayer, "run", run),
            Patch(RawAgent, "run", run),
            Patch(Executor, "execute", execute),
        ]
        invocation = getattr(agent_framework, "_tools", None)
        if hasattr(invocation, "_auto_invoke_function"):
            patches.append(Patch(invocation, "_auto_invoke_function", tools.execute))
        else:
            COUNTS.add("agent-framework-tool-details-unavailable")  # spans go on without their details
        self._patches = tuple(patches)
        FINISHERS.append(hold)
        IDENTITY.append(identity)

    def _uninstrument(self, **kwargs: Any) -> None:
        IDENTITY.remove(identity)
        FINISHERS.remove(hold)
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = ()
        if self._switched_on:
            uninstall()
