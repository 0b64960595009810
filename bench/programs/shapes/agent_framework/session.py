"""A conversation over Responses with a session, a tool and a typed answer at its end."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from pydantic import BaseModel


class City(BaseModel):
    name: str
    country: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    agent = Agent(OpenAIChatClient(model="gpt-4o-mini"), "You help.", name="guide", tools=[get_weather])
    session = agent.create_session()
    print(await agent.run("What is the weather in Paris?", session=session))
    print(await agent.run("And why?", session=session))
    answer = await agent.run("Name the city.", session=session, options={"response_format": City})
    print(answer.value)


asyncio.run(main())
