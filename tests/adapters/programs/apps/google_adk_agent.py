"""An agent with a tool, which imports the SDK behind its model only when it asks it first."""

import asyncio

from google.adk import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner


def get_weather(city: str) -> str:
    """Get the weather for a given city."""
    return f"The weather in {city} is sunny."


async def main() -> None:
    agent = Agent(
        name="weather_agent",
        model=LiteLlm("openai/gpt-4o-mini"),
        instruction="Answer questions about the weather.",
        tools=[get_weather],
    )
    events = await InMemoryRunner(agent).run_debug("What is the weather in Paris?", quiet=True)
    print(events[-1].content.parts[0].text)


asyncio.run(main())
