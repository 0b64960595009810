"""A supervisor that hands over to two agents by Command, with a memory of the conversation."""

from typing import Annotated

from langchain.agents import create_agent
from langchain_core.tools import InjectedToolCallId, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

llm = ChatOpenAI(model="gpt-4o-mini")


@tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool
def ask_mathematician(
    question: str,
    state: Annotated[dict, InjectedState],
    call_id: Annotated[str, InjectedToolCallId],
) -> Command:
    """Hand a question of numbers over to the mathematician."""
    told = {"role": "tool", "content": "handed over", "name": "ask_mathematician", "tool_call_id": call_id}
    return Command(
        goto="mathematician", update={"messages": [*state["messages"], told]}, graph=Command.PARENT
    )


mathematician = create_agent(llm, [add], system_prompt="You compute.", name="mathematician")
supervisor = create_agent(llm, [ask_mathematician], system_prompt="You delegate.", name="supervisor")

builder = StateGraph(MessagesState)
builder.add_node("supervisor", supervisor, destinations=("mathematician", END))
builder.add_node("mathematician", mathematician)
builder.add_edge(START, "supervisor")
builder.add_edge("mathematician", "supervisor")
graph = builder.compile(checkpointer=InMemorySaver())
thread = {"configurable": {"thread_id": "1"}}
for question in ("What is 1 + 1?", "And twice that?"):
    answer = graph.invoke({"messages": [{"role": "user", "content": question}]}, thread)
    print(answer["messages"][-1].content)
