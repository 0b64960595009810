"""The agent of a small pretrained model: a LangGraph graph that links a question to tables, writes SQL, runs
it, checks what came back and corrects it.

    START → link → write → execute → check → END
                              ↑        ↓
                              └──── rewrite

The graph and its tool are those of ``spider.agent``; what differs suits a model of 135 million parameters.
It says little, in one conversation that every call goes on with (``prompts``), a node more names the tables
and columns first, and ``check`` is code: a query that returned rows is the answer, one that the database
refused or that returned none is written again, with what the database said. At most ``turns`` queries are
written. A model call that fails is not caught: the run ends with its error.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr

# The only lines of this project in the agent: its texts, its tool, and how answers are rewarded.
from spider.agent import Llm
from spider.databases import databases_of
from spider.prompts import Messages
from spider.real.names import query_pattern, tables_pattern
from spider.real.prompts import EXAMPLE, NO_ROWS, WRITE, answered, complaint, opening
from spider.sql.execution import SqlError, run
from spider.sql.matching import match

TLS = ssl.create_default_context()
TURNS = 2
LINK_TOKENS, QUERY_TOKENS = 64, 96
"""Tokens of an answer at most: 99 in 100 gold answers of the training databases are shorter."""


class State(TypedDict, total=False):
    """What the nodes tell each other."""

    talk: Messages
    """The conversation up to the next call."""
    link: str
    query: str
    error: str
    turns: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run works with."""

    model: ChatOpenAI
    database: Path
    turns: int
    names: bool
    """Whether the model may write no names but those of the schema."""


async def link(state: State, runtime: Runtime[Setting]) -> State:
    """Ask which tables and columns the question is about."""
    pattern = tables_pattern(runtime.context.database)
    said = await _ask(state["talk"], runtime, LINK_TOKENS, pattern)
    return {"talk": answered(state["talk"], said, WRITE), "link": said, "turns": 0}


async def write(state: State, runtime: Runtime[Setting]) -> State:
    """Ask for the query."""
    return await _query(state, runtime)


async def execute(state: State, runtime: Runtime[Setting]) -> State:
    """Run the query; what it returned is not shown to the model."""
    try:
        result = await asyncio.to_thread(run, runtime.context.database, state["query"])
    except SqlError as error:
        return {"error": str(error)}
    return {"error": "" if result.rows else NO_ROWS}


async def check(state: State, runtime: Runtime[Setting]) -> State:
    """A query without rows goes back with what the database said: without the answer, no more is known."""
    if not state["error"]:
        return {}
    said = complaint(state["error"], state["query"], runtime.context.database)
    return {"talk": answered(state["talk"], state["query"], said)}


async def rewrite(state: State, runtime: Runtime[Setting]) -> State:
    """Ask for the query again."""
    return await _query(state, runtime)


async def _query(state: State, runtime: Runtime[Setting]) -> State:
    pattern = query_pattern(runtime.context.database, state["link"])
    said = await _ask(state["talk"], runtime, QUERY_TOKENS, pattern)
    return {"query": said, "turns": state["turns"] + 1}


async def _ask(talk: Messages, runtime: Runtime[Setting], tokens: int, pattern: str) -> str:
    setting = runtime.context
    guided = {"guided_regex": pattern} if setting.names else None
    said = await setting.model.ainvoke(talk, max_completion_tokens=tokens, extra_body=guided)
    return said.text.strip()


def after_check(state: State, runtime: Runtime[Setting]) -> str:
    return "rewrite" if state["error"] and state["turns"] < runtime.context.turns else END


def build() -> Any:
    """Return the graph; one is enough for all runs, because all they share is its shape."""
    graph = StateGraph(State, context_schema=Setting)
    for node in (link, write, execute, check, rewrite):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "link")
    graph.add_edge("link", "write")
    graph.add_edge("write", "execute")
    graph.add_edge("execute", "check")
    graph.add_conditional_edges("check", after_check, ["rewrite", END])
    graph.add_edge("rewrite", "execute")
    return graph.compile()


GRAPH = build()


@dataclass(frozen=True, slots=True)
class LinkedAgent:
    """``run(task, llm)`` answers one question and returns the reward."""

    turns: int = TURNS
    names: bool = False
    example: bool = False
    """Whether the model is shown a solved question first: for a model that was not fine-tuned."""

    async def run(self, task: Mapping[str, Any], llm: Llm) -> float:
        """1.0 if the last query answers as the gold query does, else 0.0."""
        final = await self.answer(task, llm)
        verdict = await asyncio.to_thread(match, task["query"], final["query"], databases_of(task))
        return verdict.reward

    async def answer(self, task: Mapping[str, Any], llm: Llm) -> State:
        """Return the state in which the graph ended."""
        database = databases_of(task)[0]
        async with DefaultAsyncHttpxClient(verify=TLS) as http:
            model = ChatOpenAI(
                model=llm.model,
                base_url=llm.endpoint,
                api_key=SecretStr(llm.api_key or "none"),
                http_async_client=http,
            )
            begun = opening(database, task["question"])
            state: State = {"talk": [*EXAMPLE, *begun] if self.example else begun}
            setting = Setting(model, database, self.turns, self.names)
            limit = 3 * self.turns + 4  # steps of the graph; never reached
            final: State = await GRAPH.ainvoke(state, {"recursion_limit": limit}, context=setting)
            return final


agent = LinkedAgent()
named = LinkedAgent(names=True)
"""The agent whose model may write no names but those of the schema."""
shown = LinkedAgent(example=True)
"""The agent of the model as it came, which is shown an example."""
