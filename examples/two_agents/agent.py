"""The system: START → solver → (its calculator → solver)* → reporter → END.

``solver`` works a word problem out with a calculator; its policy is a tiny one that is trained. ``reporter``
writes what the customer reads, by a prompt that is tuned; its model is not trained. A number that is right
earns half of the reward, and the other half by the share of the customer's wishes that the report fulfils. At
first no prompt names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr

import agentlightning as agl
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, extract, grade

FIRST: Final = "Tell the customer the result.\nQuestion: {question}\nResult: {result}"
"""The reporter's prompt at first."""
LONGEST: Final = 40
"""Characters of a report that has nothing but the result."""


class State(MessagesState):
    """What the agents tell each other."""

    question: str
    report: str


@tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


def build(solver: ChatOpenAI, reporter: ChatOpenAI, prompt: agl.PromptTemplate) -> Any:
    """Return the graph of the two agents."""

    async def solve(state: State) -> dict[str, Any]:
        system = SystemMessage("Use the calculator.")
        return {"messages": [await solver.bind_tools([calculate]).ainvoke([system, *state["messages"]])]}

    async def report(state: State) -> dict[str, Any]:
        result = extract(str(state["messages"][-1].content)) or "unknown"
        text = prompt.format(question=state["question"], result=result)
        return {"report": str((await reporter.ainvoke(text)).content)}

    def after(state: State) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else "reporter"

    graph = StateGraph(State)
    graph.add_node("solver", solve)
    graph.add_node("tools", ToolNode([calculate]))
    graph.add_node("reporter", report)
    graph.add_edge(START, "solver")
    graph.add_conditional_edges("solver", after, ["tools", "reporter"])
    graph.add_edge("tools", "solver")
    graph.add_edge("reporter", END)
    return graph.compile()


def wishes(report: str) -> list[bool]:
    """Return which of the customer's wishes a report fulfils: it begins with ``Result:``, it has the
    currency, and it has nothing else.
    """
    text = report.strip()
    return [text.startswith("Result:"), "EUR" in text, len(text) <= LONGEST]


def reward(report: str, answer: str, result: str) -> float:
    """Return 0.5 for the right number in ``answer``, the solver's, and up to 0.5 more for the report."""
    if not grade(answer, result):
        return 0.0
    fulfilled = wishes(report)
    return 0.5 + 0.5 * sum(fulfilled) / len(fulfilled)


@agl.rollout
async def agent(task: Mapping[str, Any], resources: dict[str, Any]) -> float:
    """Run the system on one task and return its reward."""
    async with DefaultAsyncHttpxClient() as http:
        solver, reporter = (
            ChatOpenAI(
                model=resources[name].model,
                base_url=resources[name].endpoint,
                api_key=SecretStr(resources[name].api_key or "none"),
                http_async_client=http,
                temperature=0.0,
            )
            for name in ("solver", "writer")
        )
        graph = build(solver, reporter, resources["reporter"])
        question = f"{task['question']}\n\n{ANSWER_FORM}"
        state = {"messages": [("user", question)], "question": task["question"]}
        final = await graph.ainvoke(state, {"recursion_limit": 10})
    return reward(final["report"], str(final["messages"][-1].content), task["result"])


def tasks(spec: str, n: int) -> list[dict[str, Any]]:
    """Return ``n`` generated word problems (``generated:train``, ``generated:heldout``), each with what the
    customer wants to read.
    """
    found = load(spec, n)
    return [{**one, "wanted": f"Result: {one['result']} EUR"} for one in found]
