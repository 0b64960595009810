"""An agent with a tool, as LangChain's first page shows it."""

from langchain.agents import create_agent


def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


agent = create_agent(
    model="openai:gpt-4o-mini",
    tools=[get_weather],
    system_prompt="You are a helpful assistant",
    name="forecaster",
)
result = agent.invoke({"messages": [{"role": "user", "content": "what is the weather in Paris"}]})
print(result["messages"][-1].content)
