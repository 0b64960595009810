"""autogen_core: two layers of workers and an orchestrator that puts their answers together."""

import asyncio
from dataclasses import dataclass, field

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


@dataclass
class Task:
    text: str
    answers: list[str] = field(default_factory=list)


@dataclass
class Answer:
    text: str


class Worker(RoutedAgent):
    def __init__(self, client: ChatCompletionClient) -> None:
        super().__init__("answers")
        self._client = client

    @message_handler
    async def on_task(self, message: Task, ctx: MessageContext) -> Answer:
        before = (
            [SystemMessage(content="Others said: " + "; ".join(message.answers))] if message.answers else []
        )
        asked = UserMessage(content=f"{self.id.key}: {message.text}", source="user")
        stream = self._client.create_stream([*before, asked])
        *_, last = [part async for part in stream]
        return Answer(str(last.content))


class Orchestrator(RoutedAgent):
    def __init__(self, client: ChatCompletionClient, layers: int, workers: int) -> None:
        super().__init__("puts answers together")
        self._client, self._layers, self._workers = client, layers, workers

    @message_handler
    async def on_task(self, message: Task, ctx: MessageContext) -> Answer:
        task = message
        for layer in range(self._layers):
            places = [AgentId("worker", f"layer_{layer}_worker_{n}") for n in range(self._workers)]
            answers = await asyncio.gather(*[self.send_message(task, place) for place in places])
            task = Task(message.text, [answer.text for answer in answers])
        asked = UserMessage(content="Put these together: " + "; ".join(task.answers), source="user")
        return Answer(str((await self._client.create([asked])).content))


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "worker", lambda: Worker(client))
    await Orchestrator.register(runtime, "orchestrator", lambda: Orchestrator(client, 2, 2))
    runtime.start()
    answer = await runtime.send_message(Task("Why is the sky blue?"), AgentId("orchestrator", "default"))
    await runtime.stop_when_idle()
    print(answer.text)
    await client.close()


asyncio.run(main())
