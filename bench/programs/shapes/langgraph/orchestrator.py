"""A planner that splits a report into sections, a worker for each (Send), and an editor."""

import operator
from typing import Annotated

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel
from typing_extensions import TypedDict

llm = ChatOpenAI(model="gpt-4o-mini")


class Section(BaseModel):
    name: str
    about: str


class Plan(BaseModel):
    sections: list[Section]


class State(TypedDict, total=False):
    topic: str
    sections: list[Section]
    written: Annotated[list[str], operator.add]
    report: str


class Work(TypedDict):
    section: Section


async def plan(state: State) -> State:
    made = await llm.with_structured_output(Plan).ainvoke(f"Plan a report on {state['topic']}.")
    return {"sections": [*made.sections, Section(name="Outlook", about="what comes next")]}


async def write(state: Work) -> State:
    section = state["section"]
    asked = [SystemMessage("Write this section."), HumanMessage(f"{section.name}: {section.about}")]
    return {"written": [(await llm.ainvoke(asked)).content]}


async def edit(state: State) -> State:
    return {"report": (await llm.ainvoke("Join these: " + " | ".join(state["written"]))).content}


builder = StateGraph(State)
for node in (plan, write, edit):
    builder.add_node(node.__name__, node)
builder.add_edge(START, "plan")
builder.add_conditional_edges(
    "plan", lambda state: [Send("write", {"section": section}) for section in state["sections"]], ["write"]
)
builder.add_edge("write", "edit")
builder.add_edge("edit", END)


async def main() -> None:
    async for event in builder.compile().astream({"topic": "rivers"}, stream_mode="updates"):
        print(event)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
