"""LlamaIndex adapter: every model call of a ``llama_index.core`` app is recorded with the agent that made it.

It wraps the methods that run agents, and the steps of their workflows. Core's wire layer records the token
ids. Invariant: ``uninstrument`` leaves LlamaIndex as it was.
"""

from __future__ import annotations

from agentlightning.capture.adapter import AdapterInstrumentor
from agl_llama_index import tools, turns
from agl_llama_index.package import INSTRUMENTS


class LlamaIndexInstrumentor(AdapterInstrumentor):
    """Instruments LlamaIndex; switches core's capture on unless it is on."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Wrap the methods that run agents, and their steps; ``uninstrument`` undoes each step."""
        from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent
        from llama_index.core.workflow import Workflow

        self.patch(Workflow, "run", turns.run_flow)
        self.patch_overrides(Workflow, turns.steps_of, turns.flow_step)
        self.patch(BaseWorkflowAgent, "run", turns.run_agent)
        self.patch(AgentWorkflow, "run", turns.run_agents)
        self.patch(AgentWorkflow, "run_agent_step", turns.step_of)
        for name in turns.STEPS:
            self.patch(AgentWorkflow, name, turns.step)
        for owner in (BaseWorkflowAgent, AgentWorkflow):
            self.patch(owner, "call_tool", tools.call)
