"""A chatbot with a tool node of its own, over three turns, as a stream of tokens."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def search(query: str) -> str:
    """Search the library."""
    return f"nothing about {query}"


llm = ChatOpenAI(model="gpt-4o-mini").bind_tools([search])


def chatbot(state: MessagesState) -> dict:
    return {"messages": [llm.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("chatbot", chatbot)
builder.add_node("tools", ToolNode([search]))
builder.add_edge(START, "chatbot")
builder.add_conditional_edges("chatbot", tools_condition)
builder.add_edge("tools", "chatbot")
graph = builder.compile(checkpointer=InMemorySaver())
for line in ("Hi", "What do you know of LangGraph?", "Thanks"):
    said = {"messages": [{"role": "user", "content": line}]}
    for token, _ in graph.stream(said, {"configurable": {"thread_id": "7"}}, stream_mode="messages"):
        print(token.content, end=" ")
