"""A swarm: a travel agent hands over to a refunder with a tool, who hands back to the user."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination
from autogen_agentchat.teams import Swarm
from autogen_ext.models.openai import OpenAIChatCompletionClient


def refund_flight(flight_id: str) -> str:
    """Refund a flight."""
    return f"{flight_id} refunded"


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini", parallel_tool_calls=False)
    traveller = AssistantAgent("traveller", client, handoffs=["refunder"], system_message="You book travels.")
    refunder = AssistantAgent("refunder", client, handoffs=["user"], tools=[refund_flight])
    stop = HandoffTermination(target="user") | MaxMessageTermination(12)
    result = await Swarm([traveller, refunder], termination_condition=stop).run(task="Refund flight 507.")
    print(result.stop_reason)
    await client.close()


asyncio.run(main())
