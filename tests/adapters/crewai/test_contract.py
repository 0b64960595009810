"""CrewAI keeps the adapter contract: crews in threads, and crews on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import openai._base_client as sdk
import pytest

pytest.importorskip("crewai")

from agl_testing.contract.script import SOLVER, TEAM
from contract.adapter import AdapterContract
from crewai import LLM, Agent, Crew, Task
from crewai.agents.agent_executor import AgentExecutor
from crewai.events.event_bus import CrewAIEventsBus
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool as crew_tool

from agl_crewai.instrumentor import CrewAIInstrumentor

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")


class CrewAI(AdapterContract):
    """Crews on one model, which exists twice: streaming is the model's setting."""

    test_a_prompt_that_is_too_long_raises = None  # it summarises: test_summarised_history_is_said

    def instrumentor(self) -> Any:
        return CrewAIInstrumentor()

    def client(self, url: str, key: str) -> Any:
        return {
            stream: LLM("openai/policy", base_url=url, api_key=key, max_retries=3, stream=stream)
            for stream in (False, True)
        }

    def agent(self, client: Any, role: str, stream: bool, tools: Sequence[Any] = ()) -> Agent:
        return Agent(
            role=role,
            goal="Be right.",
            backstory=f"You are {role}.",
            llm=client[stream],
            tools=list(tools),
            max_retry_limit=0,
        )

    def crew(self, agents: list[Agent], task: str) -> Crew:
        tasks = [
            Task(description=f"{task}, says {agent.role}", expected_output="words", agent=agent)
            for agent in agents
        ]
        return Crew(agents=agents, tasks=tasks, memory=False, cache=False, verbose=False)

    async def kickoff(self, crew: Crew) -> Any:
        return await crew.kickoff_async()

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        solver = self.agent(client, SOLVER, stream, [crew_tool(tool.__name__)(tool)])
        return (await self.kickoff(self.crew([solver], task))).raw

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        solver = self.agent(client, SOLVER, stream, [crew_tool(tool.__name__)(tool)])
        return self.crew([solver], task).kickoff().raw

    async def team(self, client: Any, task: str, stream: bool) -> None:
        await self.kickoff(self.crew([self.agent(client, name, stream) for name in TEAM], task))

    async def structured(self, client: Any, task: str, schema: type[Any], stream: bool) -> Any:
        agent = self.agent(client, SOLVER, stream)
        job = Task(description=task, expected_output="a number", agent=agent, output_pydantic=schema)
        crew = Crew(agents=[agent], tasks=[job], memory=False, cache=False, verbose=False)
        return (await self.kickoff(crew)).pydantic

    async def several(self, client: Any, task: str, n: int) -> bool:
        llm = client[False]
        many = LLM(llm.model, base_url=llm.base_url, api_key=llm.api_key, additional_params={"n": n})
        await many.acall(task)
        await self.close({False: many})
        return True

    async def close(self, client: Any) -> None:
        for llm in client.values():
            llm._get_sync_client().close()
            await llm._get_async_client().close()

    def patched(self) -> Sequence[tuple[Any, str]]:
        return [
            (sdk.SyncAPIClient, "request"),
            (sdk.AsyncAPIClient, "request"),
            (sdk.BaseClient, "_build_request"),
            (Agent, "execute_task"),
            (Agent, "aexecute_task"),
            (Agent, "kickoff"),
            (Agent, "kickoff_async"),
            (AgentExecutor, "_execute_single_native_tool_call"),
            (BaseLLM, "summarize_messages"),
            (CrewAIEventsBus, "emit"),
        ]


class TestThreads(CrewAI):
    """``kickoff_async``: each crew in a thread of its own."""


class TestLoop(CrewAI):
    """``akickoff``: all crews on the event loop."""

    test_sixteen_agents_over_four_processes = None  # crews in threads and processes are enough

    async def kickoff(self, crew: Crew) -> Any:
        return await crew.akickoff()


class TestBareAgents(CrewAI):
    """Agents without a crew."""

    test_sixteen_agents_over_four_processes = None

    async def tool_agent(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        solver = self.agent(client, SOLVER, stream, [crew_tool(tool.__name__)(tool)])
        return (await solver.kickoff_async(task)).raw

    def tool_agent_sync(self, client: Any, task: str, tool: Callable[..., Any], stream: bool) -> str:
        solver = self.agent(client, SOLVER, stream, [crew_tool(tool.__name__)(tool)])
        return solver.kickoff(task).raw

    async def team(self, client: Any, task: str, stream: bool) -> None:
        for name in TEAM:
            task += (await self.agent(client, name, stream).kickoff_async(task)).raw
