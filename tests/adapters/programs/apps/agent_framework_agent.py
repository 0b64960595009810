"""An agent with a tool, whole and streamed (Microsoft Agent Framework)."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient


def get_weather(city: str) -> str:
    """Get the weather for a given city."""
    return f"The weather in {city} is sunny."


async def main() -> None:
    agent = Agent(
        OpenAIChatCompletionClient(model="gpt-4o-mini"),
        "You are a helpful assistant.",
        name="WeatherAgent",
        tools=[get_weather],
    )
    print(await agent.run("What is the weather in Paris?"))
    async for update in agent.run("And in Rome?", stream=True):
        if update.text:
            print(update.text, end="", flush=True)


asyncio.run(main())
