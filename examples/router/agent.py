"""The agent: a LangGraph graph that chooses a database and looks the answer up in it.

    START → route → look_up → END

``route`` asks the model for the database that can answer the question. The engine lets the model write
nothing but one of the offered names (guided choice). ``look_up`` opens that database read-only and answers
what plain code can answer; it calls no model. So only ``route`` has something to learn (``select: [route]``).

The reward is 1.0 for the database that the question was asked about, else 0.0. A failing model call is not
caught: the run ends with its error.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr

# The only lines of this project in the agent: its texts and its tool.
from router.databases import file_of
from router.lookup import Answer, answer
from router.prompts import Show, to_route

ANSWER_TOKENS = 20
"""Tokens of an answer at most: the longest name of a database has 10 in SmolLM2's vocabulary."""
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
    databases: list[str]
    show: Show
    chosen: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run works with."""

    model: ChatOpenAI


async def route(state: State, runtime: Runtime[Setting]) -> State:
    """Ask the model which of the databases can answer the question."""
    prompt = to_route(state["question"], state["databases"], state["show"])
    guided = {"guided_choice": state["databases"]}
    said = await runtime.context.model.ainvoke(prompt, extra_body=guided)
    return {"chosen": said.text.strip()}


async def look_up(state: State, runtime: Runtime[Setting]) -> State:
    """Answer the question from the chosen database without a model."""
    return {"answer": await asyncio.to_thread(answer, file_of(state["chosen"]), state["question"])}


def after_route(state: State) -> str:
    """An engine that knows no guided choice may write a name that was not on offer."""
    return "look_up" if state["chosen"] in state["databases"] else END


def build() -> Any:
    """Return the graph; one is enough for all runs, because all they share is its shape."""
    graph = StateGraph(State, context_schema=Setting)
    graph.add_node("route", route)
    graph.add_node("look_up", look_up)
    graph.add_edge(START, "route")
    graph.add_conditional_edges("route", after_route, ["look_up", END])
    graph.add_edge("look_up", END)
    return graph.compile()


GRAPH = build()


async def agent(task: Mapping[str, Any], llm: Llm) -> float:
    """Return 1.0 if the chosen database is the right one, else 0.0."""
    final = await ask(task["question"], task["databases"], llm, task["show"])
    return float(final["chosen"] == task["answer"])


async def ask(question: str, databases: list[str], llm: Llm, show: Show = "names") -> State:
    """Return the state in which the graph ended: the chosen database and what was found in it."""
    async with DefaultAsyncHttpxClient(verify=TLS) as http:
        model = ChatOpenAI(
            model=llm.model,
            base_url=llm.endpoint,
            api_key=SecretStr(llm.api_key or "none"),
            max_completion_tokens=ANSWER_TOKENS,
            http_async_client=http,
        )
        state: State = {"question": question, "databases": databases, "show": show}
        final: State = await GRAPH.ainvoke(state, context=Setting(model))
        return final
