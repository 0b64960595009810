"""CrewAI adapter: every model call of a ``crewai`` app is recorded with the agent that made it.

Native doors: the methods that run an ``Agent``, in whose own thread or task its span lies; and the event bus,
where it emits. Core's wire layer has the token ids. Invariant: ``uninstrument`` leaves CrewAI as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.identity import IDENTITY
from agentlightning.capture.install import install, installed, uninstall
from agentlightning.capture.patching import Patch
from agl_crewai.identity import entry_methods, identity
from agl_crewai.package import INSTRUMENTS

__all__ = ["CrewAIInstrumentor", "entry_methods", "identity"]


class CrewAIInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments CrewAI; switches core's capture on where that is not done yet."""

    _patches: tuple[Patch, ...] = ()
    _switched_on = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return INSTRUMENTS

    def _instrument(self, **kwargs: Any) -> None:
        from crewai import Agent
        from crewai.agents.agent_executor import AgentExecutor
        from crewai.events.event_bus import CrewAIEventsBus
        from crewai.llms.base_llm import BaseLLM

        from agl_crewai import execution, tools

        self._switched_on = not installed()
        install(kwargs.get("tracer_provider"))
        patches = [
            Patch(Agent, "execute_task", execution.execute),
            Patch(Agent, "aexecute_task", execution.aexecute),
            Patch(Agent, "kickoff", execution.kickoff),
            Patch(Agent, "kickoff_async", execution.akickoff),
            Patch(BaseLLM, "summarize_messages", execution.summarise),
            Patch(CrewAIEventsBus, "emit", tools.emit),
        ]
        if "_execute_single_native_tool_call" in vars(AgentExecutor):
            patches.append(Patch(AgentExecutor, "_execute_single_native_tool_call", tools.call))
        else:
            COUNTS.add("crewai-tool-details-unavailable")  # tool spans go on with parsed arguments and no id
        self._patches = tuple(patches)
        IDENTITY.append(identity)

    def _uninstrument(self, **kwargs: Any) -> None:
        IDENTITY.remove(identity)
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = ()
        if self._switched_on:
            uninstall()
