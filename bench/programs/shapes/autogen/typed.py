"""An agent whose answer is a pydantic model, and an agent that it is a tool of."""

import asyncio
from typing import Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Mood(BaseModel):
    thoughts: str
    mood: Literal["happy", "sad", "neutral"]


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    main_client = OpenAIChatCompletionClient(model="gpt-4o-mini", parallel_tool_calls=False)
    feeler = AssistantAgent(
        "feeler", client, output_content_type=Mood, description="Says the mood of a text."
    )
    result = await feeler.run(task="I am happy.")
    print(result.messages[-1].content.mood)
    poet = AssistantAgent("poet", client, description="Writes poems.")
    editor = AssistantAgent("editor", main_client, tools=[AgentTool(poet)], max_tool_iterations=3)
    print((await editor.run(task="A poem on rain.")).messages[-1].to_text())
    await client.close()
    await main_client.close()


asyncio.run(main())
