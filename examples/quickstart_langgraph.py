"""LangGraph: a graph of two nodes with a calculator, and the three lines that train it.

Run it with `python examples/quickstart_langgraph.py`, in the repository.
The policy is a tiny one that learns on a CPU in seconds.
"""

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import DefaultAsyncHttpxClient

import agentlightning as agl  # ours, 1 of 3
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade


@tool
def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return calculate_text(expression)


def build(model):
    async def think(state):
        said = await model.bind_tools([calculate]).ainvoke(
            [SystemMessage("Use the calculator."), *state["messages"]]
        )
        return {"messages": [said]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([calculate]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


@agl.rollout  # 2 of 3: what runs one task and returns its reward
async def solve(task, llm):
    question = f"{task['question']}\n\n{ANSWER_FORM}"
    async with DefaultAsyncHttpxClient() as http:  # LangChain never closes those it makes itself
        model = ChatOpenAI(
            model=llm.model, base_url=llm.endpoint, api_key=llm.api_key, http_async_client=http
        )
        result = await build(model).ainvoke({"messages": [("user", question)]}, {"recursion_limit": 8})
    return grade(result["messages"][-1].content, task["result"])


if __name__ == "__main__":
    train, held_out = load("generated:train", 400), load("generated:heldout", 64)
    agl.Trainer(policy="examples/quickstart/policy", steps=12).fit(solve, train, held_out)  # 3 of 3
