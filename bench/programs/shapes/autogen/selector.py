"""A team whose next speaker the model chooses: planner, searcher with a tool, analyst."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import SelectorGroupChat
from autogen_agentchat.ui import Console
from autogen_ext.models.openai import OpenAIChatCompletionClient


def search_web(query: str) -> str:
    """Find something in the web."""
    return "2006: 844 points; 2007: 1397 points"


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    team = SelectorGroupChat(
        [
            AssistantAgent("planner", client, description="Plans first.", system_message="You plan."),
            AssistantAgent("searcher", client, description="Searches.", tools=[search_web]),
            AssistantAgent("analyst", client, description="Computes."),
        ],
        model_client=client,
        termination_condition=MaxMessageTermination(4),
        allow_repeated_speaker=True,
    )
    await Console(team.run_stream(task="Who had the most points?"))
    await client.close()


asyncio.run(main())
