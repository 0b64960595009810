"""A graph of two nodes on one model, streamed."""

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

llm = ChatOpenAI(model="gpt-4o-mini")


def planner(state: MessagesState) -> dict:
    return {"messages": [llm.invoke(state["messages"])]}


def writer(state: MessagesState) -> dict:
    return {"messages": [llm.invoke([*state["messages"], {"role": "user", "content": "Write it."}])]}


builder = StateGraph(MessagesState)
builder.add_node(planner)
builder.add_node(writer)
builder.add_edge(START, "planner")
builder.add_edge("planner", "writer")
builder.add_edge("writer", END)
graph = builder.compile()
for update in graph.stream({"messages": [{"role": "user", "content": "A note on Paris"}]}):
    for node, change in update.items():
        print(node, change["messages"][-1].content)
