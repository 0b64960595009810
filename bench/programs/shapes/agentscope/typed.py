"""An agent whose answer is a pydantic model (AgentScope 2)."""

import asyncio
import os

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(description="The name of the person")
    age: int = Field(ge=0, le=120)


async def main() -> None:
    model = OpenAIChatModel(OpenAICredential(api_key=os.environ["OPENAI_API_KEY"]), "gpt-4o-mini")
    agent = Agent(name="biographer", system_prompt="You answer in facts.", model=model)
    answer = await agent.reply(UserMsg(name="user", content="Who was Einstein?"), structured_schema=Person)
    print(answer)


asyncio.run(main())
