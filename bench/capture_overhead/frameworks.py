"""The agents that are measured: one of each framework, named ``solver``, with a tool; two model calls a
run.

Each function makes what one run needs and returns it; the frameworks are imported inside, because no
environment has them all.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

Run = Callable[[str], Awaitable[Any]]
URL, KEY, NAME = "http://127.0.0.1:9/v1", "agl-context", "solver"
"""Nothing listens there: answers come from a canned transport."""


class Case(NamedTuple):
    """A framework: where it is installed, what instruments it, and its agent."""

    environment: str
    distribution: str
    instrumentor: str | None
    """``package:class``; ``None``: core alone."""
    make: Callable[[], Run]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def bare() -> Run:
    """The loop of every tutorial, on the openai SDK alone."""
    import openai

    client = openai.AsyncOpenAI(base_url=URL, api_key=KEY)
    number = {"type": "integer"}
    schema = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": schema}}]

    async def run(task: str) -> Any:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            answer = await client.chat.completions.create(model="policy", messages=messages, tools=tools)
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append({"role": "assistant", "tool_calls": [message.tool_calls[0].model_dump()]})
            messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "42"})

    return run


def langchain() -> Run:
    """``create_agent``, LangChain's own."""
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="policy", base_url=URL, api_key=KEY)
    agent: Any = create_agent(model, [add], system_prompt="Solve.", name=NAME)
    return lambda task: agent.ainvoke({"messages": [("user", task)]})


def langgraph() -> Run:
    """A graph written by hand: a node that asks the model, and one that runs tools."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    model = ChatOpenAI(model="policy", base_url=URL, api_key=KEY).bind_tools([add])

    async def speak(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node(NAME, speak)
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, NAME)
    graph.add_conditional_edges(NAME, tools_condition)
    graph.add_edge("tools", NAME)
    compiled = graph.compile()
    return lambda task: compiled.ainvoke({"messages": [("user", task)]})


def autogen() -> Run:
    """An ``AssistantAgent`` a run: it remembers."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    said = ("vision", "json_output", "structured_output")
    info: Any = {**dict.fromkeys(said, False), "function_calling": True, "family": "unknown"}
    client = OpenAIChatCompletionClient(model="policy", base_url=URL, api_key=KEY, model_info=info)

    def run(task: str) -> Awaitable[Any]:
        agent = AssistantAgent(NAME, client, tools=[add], system_message="Solve.", max_tool_iterations=2)
        return agent.run(task=task)

    return run


def crewai() -> Run:
    """A crew of one."""
    os.environ["CREWAI_DISABLE_TELEMETRY"], os.environ["CREWAI_TRACING_ENABLED"] = "true", "false"
    from crewai import Agent, Crew, Task
    from crewai.llms.providers.openai.completion import OpenAICompletion
    from crewai.tools import tool

    class Wide(OpenAICompletion):  # the policy's catalogue entry is 8,192 tokens, else it summarises
        def get_context_window_size(self) -> int:
            return 1_000_000

    model: Any = Wide(model="policy", base_url=URL, api_key=KEY)
    tools = [tool("add")(add)]

    def run(task: str) -> Awaitable[Any]:
        agent = Agent(role=NAME, goal="Solve.", backstory="Able.", llm=model, tools=tools, max_retry_limit=0)
        job = Task(description=task, expected_output="a number", agent=agent)
        crew = Crew(agents=[agent], tasks=[job], memory=False, cache=False, verbose=False)
        return crew.akickoff()

    return run


def openai_agents() -> Run:
    """The SDK with its tracing on, and the vendor's exporter taken out."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_trace_processors
    from openai import AsyncOpenAI

    set_trace_processors([])
    model = OpenAIChatCompletionsModel("policy", AsyncOpenAI(base_url=URL, api_key=KEY))
    agent = Agent(name=NAME, instructions="Solve.", model=model, tools=[function_tool(add)])
    return lambda task: Runner.run(agent, task)


def agentscope1() -> Run:
    """A ``ReActAgent`` a run: it remembers."""
    os.environ["AGENTSCOPE_DISABLE_CONSOLE_OUTPUT"] = "true"
    from agentscope.agent import ReActAgent
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.message import Msg, TextBlock
    from agentscope.model import OpenAIChatModel
    from agentscope.tool import Toolkit, ToolResponse

    def tool(a: int, b: int) -> ToolResponse:
        """Add two numbers."""
        return ToolResponse([TextBlock(type="text", text=str(a + b))])

    tool.__name__ = "add"
    model = OpenAIChatModel("policy", api_key=KEY, stream=False, client_kwargs={"base_url": URL})

    def run(task: str) -> Awaitable[Any]:
        toolkit = Toolkit()
        toolkit.register_tool_function(tool)
        return ReActAgent(NAME, "Solve.", model, OpenAIChatFormatter(), toolkit)(Msg("user", task, "user"))

    return run


def agentscope2() -> Run:
    """An ``Agent`` a run: it remembers."""
    from agentscope.agent import Agent
    from agentscope.credential import OpenAICredential
    from agentscope.message import UserMsg
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionContext, PermissionMode
    from agentscope.state import AgentState
    from agentscope.tool import FunctionTool, Toolkit

    model = OpenAIChatModel(OpenAICredential(api_key=KEY, base_url=URL), "policy", stream=False)

    def run(task: str) -> Awaitable[Any]:
        state = AgentState(permission_context=PermissionContext(mode=PermissionMode.BYPASS))
        toolkit = Toolkit(tools=[FunctionTool(add)])
        return Agent(NAME, "Solve.", model, toolkit, state=state).reply(UserMsg(name="user", content=task))

    return run


def agent_framework() -> Run:
    """An ``Agent`` without a session."""
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatCompletionClient
    from openai import AsyncOpenAI

    sdk = AsyncOpenAI(base_url=URL, api_key=KEY)
    agent = Agent(OpenAIChatCompletionClient("policy", async_client=sdk), "Solve.", name=NAME, tools=[add])

    async def run(task: str) -> Any:
        return await agent.run(task)

    return run


def pydantic_ai() -> Run:
    """An ``Agent`` for all runs: it remembers nothing."""
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    sdk = AsyncOpenAI(base_url=URL, api_key=KEY)
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=sdk))
    agent = Agent(model, name=NAME, instructions="Solve.", tools=[add])
    return lambda task: agent.run(task)


def google_adk() -> Run:
    """An ``Agent`` in a session of its own each run."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    from google.adk.agents import Agent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from openai import AsyncOpenAI

    model = LiteLlm("openai/policy", client=AsyncOpenAI(base_url=URL, api_key=KEY))
    agent = Agent(name=NAME, model=model, instruction="Solve.", tools=[add])
    return lambda task: InMemoryRunner(agent).run_debug(task, quiet=True)


def smolagents() -> Run:
    """A ``ToolCallingAgent`` for all runs, each in a thread: it blocks. Its last step asks without tools."""
    import asyncio

    from smolagents import LogLevel, OpenAIServerModel, Tool, ToolCallingAgent

    class Add(Tool):
        name, description, output_type = "add", "Add two numbers.", "integer"
        inputs = {key: {"type": "integer", "description": "A number."} for key in ("a", "b")}

        def forward(self, a: int, b: int) -> int:
            return add(a, b)

    model = OpenAIServerModel("policy", api_base=URL, api_key=KEY)
    agent = ToolCallingAgent([Add()], model, name=NAME, max_steps=1, verbosity_level=LogLevel.OFF)
    return lambda task: asyncio.to_thread(agent.run, task)


def llama_index() -> Run:
    """A ``FunctionAgent`` for all runs: each has a memory of its own."""
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike

    kinds = {"is_chat_model": True, "is_function_calling_model": True}
    model = OpenAILike(model="policy", api_base=URL, api_key=KEY, **kinds)
    agent = FunctionAgent(name=NAME, llm=model, tools=[add], system_prompt="Solve.", streaming=False)

    async def run(task: str) -> Any:
        return await agent.run(user_msg=task)

    return run


def dspy() -> Run:
    """A ``ReAct`` that thinks once, named by its class. The canned answers are not in DSPy's form, so its
    adapter does not read them.
    """
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import dspy as framework
    import httpx
    import litellm

    litellm.aclient_session = httpx.AsyncClient()  # litellm's own is not httpx's, in whose place answers are

    class Plain(framework.ChatAdapter):  # type: ignore[misc]
        def _call_postprocess(self, processed: Any, signature: Any, outputs: Any, *more: Any) -> Any:
            if "next_tool_name" not in signature.output_fields:
                return [{"reasoning": "", "answer": "42"}]
            return [{"next_thought": "", "next_tool_name": "add", "next_tool_args": {"a": 17, "b": 25}}]

    model = framework.LM("openai/policy", api_base=URL, api_key=KEY, cache=False, engine="litellm")
    agent = type(NAME, (framework.ReAct,), {})("task -> answer", tools=[add], max_iters=1)

    async def run(task: str) -> Any:
        with framework.context(lm=model, adapter=Plain()):
            return await agent.acall(task=task)

    return run


def strands_agents() -> Run:
    """An ``Agent`` for each run: it remembers."""
    from openai import AsyncOpenAI
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    sdk, given = AsyncOpenAI(base_url=URL, api_key=KEY), tool(add)

    async def run(task: str) -> Any:
        model = OpenAIModel(sdk, model_id="policy", stream=False)
        agent = Agent(model, name=NAME, system_prompt="Solve.", tools=[given], callback_handler=None)
        return await agent.invoke_async(task)

    return run


CASES = {
    "openai": Case("latest", "openai", None, bare),
    "langchain": Case("latest", "langchain", "agl_langchain:LangChainInstrumentor", langchain),
    "langgraph": Case("latest", "langgraph", "agl_langgraph:LangGraphInstrumentor", langgraph),
    "autogen": Case("latest", "autogen-agentchat", "agl_autogen:AutoGenInstrumentor", autogen),
    "crewai": Case("crewai", "crewai", "agl_crewai:CrewAIInstrumentor", crewai),
    "openai-agents": Case(
        "latest", "openai-agents", "agl_openai_agents:OpenAIAgentsInstrumentor", openai_agents
    ),
    "agentscope-1": Case("agentscope1", "agentscope", "agl_agentscope:AgentScopeInstrumentor", agentscope1),
    "agentscope-2": Case("latest", "agentscope", "agl_agentscope:AgentScopeInstrumentor", agentscope2),
    "agent-framework": Case(
        "latest", "agent-framework-core", "agl_agent_framework:AgentFrameworkInstrumentor", agent_framework
    ),
    "dspy": Case("dspy", "dspy", "agl_dspy:DSPyInstrumentor", dspy),
    "google-adk": Case("adk", "google-adk", "agl_google_adk:GoogleADKInstrumentor", google_adk),
    "pydantic-ai": Case("latest", "pydantic-ai-slim", "agl_pydantic_ai:PydanticAIInstrumentor", pydantic_ai),
    "llama-index": Case(
        "llamaindex", "llama-index-core", "agl_llama_index:LlamaIndexInstrumentor", llama_index
    ),
    "smolagents": Case("smolagents", "smolagents", "agl_smolagents:SmolagentsInstrumentor", smolagents),
    "strands-agents": Case(
        "strands", "strands-agents", "agl_strands_agents:StrandsInstrumentor", strands_agents
    ),
}
