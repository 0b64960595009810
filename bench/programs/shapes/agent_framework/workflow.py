"""A workflow: a writer, then a reviewer with a typed verdict, then an executor of our own."""

import asyncio
from typing import Never

from agent_framework import Agent, AgentExecutorResponse, WorkflowBuilder, WorkflowContext, executor
from agent_framework.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Verdict(BaseModel):
    approved: bool
    advice: str


@executor(id="publish")
async def publish(answer: AgentExecutorResponse, context: WorkflowContext[Never, str]) -> None:
    verdict = Verdict.model_validate_json(answer.agent_response.text)
    await context.yield_output("published" if verdict.approved else verdict.advice)


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    writer = Agent(client, "You write slogans.", name="writer")
    reviewer = Agent(
        client, "You review slogans.", name="reviewer", default_options={"response_format": Verdict}
    )
    builder = WorkflowBuilder(start_executor=writer)
    workflow = builder.add_edge(writer, reviewer).add_edge(reviewer, publish).build()
    print((await workflow.run("A slogan for an electric bicycle")).get_outputs())


asyncio.run(main())
