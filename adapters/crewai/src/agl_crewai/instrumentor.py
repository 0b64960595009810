"""CrewAI adapter: every model call of a ``crewai`` app is recorded with the agent that made it.

It wraps the methods that run an ``Agent``, and listens to the event bus where events are emitted. Core's wire
layer records the token ids. Invariant: ``uninstrument`` leaves CrewAI as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_crewai.package import INSTRUMENTS


class CrewAIInstrumentor(AdapterInstrumentor):
    """Instruments CrewAI; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run an agent, and listen to the event bus."""
        from crewai import Agent
        from crewai.agents.agent_executor import AgentExecutor
        from crewai.events.event_bus import CrewAIEventsBus
        from crewai.llms.base_llm import BaseLLM

        from agl_crewai import execution, tools

        self.patch(Agent, "execute_task", execution.execute)
        self.patch(Agent, "aexecute_task", execution.aexecute)
        self.patch(Agent, "kickoff", execution.kickoff)
        self.patch(Agent, "kickoff_async", execution.akickoff)
        self.patch(BaseLLM, "summarize_messages", execution.summarise)
        self.patch(CrewAIEventsBus, "emit", tools.emit)
        missing = "crewai-tool-details-unavailable"  # tool spans go on with parsed arguments and no id
        self.patch_private(AgentExecutor, "_execute_single_native_tool_call", tools.call, missing)
