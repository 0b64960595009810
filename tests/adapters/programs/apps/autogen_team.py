"""A writer with a tool and a critic in turns."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def get_weather(city: str) -> str:
    """Get the weather for a given city."""
    return f"The weather in {city} is sunny."


async def main() -> None:
    model_client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    writer = AssistantAgent(
        "writer", model_client, tools=[get_weather], reflect_on_tool_use=True, model_client_stream=True
    )
    critic = AssistantAgent("critic", model_client, system_message="Say what is wrong.")
    team = RoundRobinGroupChat([writer, critic], termination_condition=MaxMessageTermination(3))
    result = await team.run(task="What is the weather in Paris?")
    print(result.messages[-1].to_text())
    await model_client.close()


asyncio.run(main())
