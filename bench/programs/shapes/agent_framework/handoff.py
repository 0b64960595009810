"""A triage agent that hands over to an expert with a tool."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import HandoffBuilder


def order_status(order: str) -> str:
    """The status of an order."""
    return f"order {order} is on its way"


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    kept = {"require_per_service_call_history_persistence": True}
    triage = Agent(client, "You find out who can help.", id="triage", name="triage", **kept)
    orders = Agent(client, "You know orders.", id="orders", name="orders", tools=[order_status], **kept)
    builder = HandoffBuilder(participants=[triage, orders]).with_start_agent(triage)
    workflow = builder.add_handoff(triage, [orders]).build()
    async for event in workflow.run("Where is order 7?", stream=True):
        print(event.type)


asyncio.run(main())
