"""A router with a typed decision, and a writer for each kind of text."""

from typing import Literal

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

llm = ChatOpenAI(model="gpt-4o-mini")


class Route(BaseModel):
    step: Literal["poem", "story", "joke"] = Field(description="What to write")


class State(TypedDict, total=False):
    wish: str
    step: str
    text: str


def route(state: State) -> State:
    decision = llm.with_structured_output(Route).invoke(f"What does the user want? {state['wish']}")
    return {"step": decision.step}


def write(kind: str):
    def node(state: State) -> State:
        return {"text": llm.invoke(f"Write a {kind} about: {state['wish']}").content}

    return node


graph = StateGraph(State)
graph.add_node("route", route)
for kind in ("poem", "story", "joke"):
    graph.add_node(kind, write(kind))
    graph.add_edge(kind, END)
graph.add_edge(START, "route")
graph.add_conditional_edges("route", lambda state: state["step"], ["poem", "story", "joke"])
print(graph.compile().invoke({"wish": "Something that rhymes, about cats"})["text"])
