"""Three experts at once, and what they say together."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import ConcurrentBuilder


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    experts = [
        Agent(client, f"You are the {name}.", name=name) for name in ("researcher", "marketer", "lawyer")
    ]
    events = await ConcurrentBuilder(participants=experts).build().run("We sell an electric bicycle.")
    print(events.get_outputs())


asyncio.run(main())
