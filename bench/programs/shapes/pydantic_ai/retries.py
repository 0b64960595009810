"""An answer that a validator sends back once, dependencies, and a stream."""

import asyncio
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext


@dataclass
class Customer:
    name: str
    asked: int = 0


class Reply(BaseModel):
    text: str
    risk: int


support = Agent("openai-chat:gpt-4o-mini", deps_type=Customer, output_type=Reply, name="support")


@support.instructions
def who(ctx: RunContext[Customer]) -> str:
    return f"The customer is {ctx.deps.name}."


@support.output_validator
def check(ctx: RunContext[Customer], reply: Reply) -> Reply:
    ctx.deps.asked += 1
    if ctx.deps.asked == 1:
        raise ModelRetry("Say it more kindly.")
    return reply


teller = Agent("openai-responses:gpt-4o-mini", name="teller")


async def main() -> None:
    print((await support.run("My card is lost.", deps=Customer("Ann"))).output)
    async with teller.run_stream("A story in a line.") as story:
        async for text in story.stream_text():
            print(text)


asyncio.run(main())
