"""A writer and a critic in a loop, until the critic is content."""

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

writer = ChatOpenAI(model="gpt-4o-mini", temperature=0.7)
judge = ChatOpenAI(model="gpt-4o-mini", temperature=0)


class Feedback(BaseModel):
    good: bool
    advice: str


class State(TypedDict, total=False):
    topic: str
    joke: str
    feedback: Feedback


def generate(state: State) -> State:
    advice = state["feedback"].advice if "feedback" in state else "none"
    said = "".join(str(c.content) for c in writer.stream(f"A joke on {state['topic']}. Advice: {advice}"))
    return {"joke": said}


def evaluate(state: State) -> State:
    return {"feedback": judge.with_structured_output(Feedback).invoke(f"Is this funny? {state['joke']}")}


builder = StateGraph(State)
builder.add_node("generate", generate)
builder.add_node("evaluate", evaluate)
builder.add_edge(START, "generate")
builder.add_edge("generate", "evaluate")
builder.add_conditional_edges(
    "evaluate",
    lambda state: "done" if state["feedback"].good else "again",
    {"done": END, "again": "generate"},
)
print(builder.compile().invoke({"topic": "ducks"}, {"recursion_limit": 10})["joke"])
