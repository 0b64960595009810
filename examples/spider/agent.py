"""The agent: a LangGraph graph that writes SQL, runs it, reviews it and corrects it, as anybody would write
it.

    START → write → execute → check → END
                       ↑         ↓
                       └───── rewrite

At most ``turns`` queries are written. What the last of them returned is not reviewed any more, because no
verdict could change anything then. The query that was run last is the answer. A model call that fails is not
caught: the run ends with its error.
"""

from __future__ import annotations

import asyncio
import operator
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypedDict

from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr

# The only lines of this project in the agent: its texts, its tool, and how answers are rewarded.
from spider.budget import BRIEF, PUBLIC, Budget
from spider.databases import databases_of
from spider.prompts import is_right, query_in, to_check, to_rewrite, to_write
from spider.sql.execution import SqlError, run
from spider.sql.matching import match
from spider.sql.schema import describe
from spider.sql.showing import show, show_error

# Reading the certificate store takes 18 ms, all the rest of a client a few: once is enough.
TLS = ssl.create_default_context()


class Llm(Protocol):
    """Where the model is."""

    @property
    def endpoint(self) -> str:
        """Base URL of an OpenAI-compatible API, with its ``/v1``."""

    @property
    def api_key(self) -> str | None: ...

    @property
    def model(self) -> str: ...


class State(TypedDict, total=False):
    """What the nodes tell each other."""

    question: str
    schema: str
    query: str
    result: str
    judgement: str
    turns: int
    messages: Annotated[list[AIMessage], operator.add]
    """The model's answers in order; the name says which node asked."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run works with."""

    model: ChatOpenAI
    database: Path
    budget: Budget


async def write(state: State, runtime: Runtime[Setting]) -> State:
    answer = await runtime.context.model.ainvoke(to_write(state["schema"], state["question"]))
    return {"query": query_in(answer.text), "turns": 1, "messages": [_named(answer, "write")]}


async def execute(state: State, runtime: Runtime[Setting]) -> State:
    setting, budget = runtime.context, runtime.context.budget
    try:
        result = await asyncio.to_thread(run, setting.database, state["query"], budget.sql)
    except SqlError as error:
        return {"result": show_error(error, budget.result_chars)}
    return {"result": show(result, budget.result_chars, budget.result_rows)}


async def check(state: State, runtime: Runtime[Setting]) -> State:
    prompt = to_check(state["schema"], state["question"], state["query"], state["result"])
    answer = await runtime.context.model.ainvoke(prompt)
    return {"judgement": answer.text, "messages": [_named(answer, "check")]}


async def rewrite(state: State, runtime: Runtime[Setting]) -> State:
    tried = state["query"], state["result"], state["judgement"]
    answer = await runtime.context.model.ainvoke(to_rewrite(state["schema"], state["question"], *tried))
    query = query_in(answer.text, otherwise=state["query"])
    return {"query": query, "turns": state["turns"] + 1, "messages": [_named(answer, "rewrite")]}


def after_execute(state: State, runtime: Runtime[Setting]) -> str:
    return "check" if state["turns"] < runtime.context.budget.turns else END


def after_check(state: State) -> str:
    return END if is_right(state["judgement"]) else "rewrite"


def build() -> Any:
    """The graph; one is enough for all runs, because all they share is its shape."""
    graph = StateGraph(State, context_schema=Setting)
    for node in (write, execute, check, rewrite):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "write")
    graph.add_edge("write", "execute")
    graph.add_conditional_edges("execute", after_execute, ["check", END])
    graph.add_conditional_edges("check", after_check, ["rewrite", END])
    graph.add_edge("rewrite", "execute")
    return graph.compile()


GRAPH = build()


class SqlAgent:
    """The agent within a budget; ``run(task, llm)`` answers one question and returns the reward."""

    def __init__(self, budget: Budget = PUBLIC) -> None:
        self.budget = budget

    async def run(self, task: Mapping[str, Any], llm: Llm) -> float:
        """1.0 if the last query answers as the gold query does, else 0.0."""
        final = await self.answer(task, llm)
        verdict = await asyncio.to_thread(
            match, task["query"], final["query"], databases_of(task), self.budget.sql
        )
        return verdict.reward

    async def answer(self, task: Mapping[str, Any], llm: Llm) -> State:
        """The state in which the graph ended."""
        database, budget = databases_of(task)[0], self.budget
        schema = describe(database, budget.schema_chars, budget.sample_rows)
        async with DefaultAsyncHttpxClient(verify=TLS) as http:
            model = ChatOpenAI(
                model=llm.model,
                base_url=llm.endpoint,
                api_key=SecretStr(llm.api_key or "none"),
                max_completion_tokens=budget.answer_tokens,
                http_async_client=http,
            )
            state: State = {"question": task["question"], "schema": schema}
            limit = 4 * budget.turns + 4  # steps of the graph; never reached
            final: State = await GRAPH.ainvoke(
                state, {"recursion_limit": limit}, context=Setting(model, database, budget)
            )
            return final


def _named(answer: AIMessage, node: str) -> AIMessage:
    return answer.model_copy(update={"name": node})


agent = SqlAgent()
brief = SqlAgent(BRIEF)
"""The agent of the small policy, which cannot read much."""
