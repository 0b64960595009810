"""autogen_core: a coder publishes its work, a reviewer answers, until it is approved."""

import asyncio
from dataclasses import dataclass

from autogen_core import (
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    default_subscription,
    message_handler,
)
from autogen_core.models import AssistantMessage, ChatCompletionClient, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


@dataclass
class Wish:
    text: str


@dataclass
class Work:
    code: str
    round: int


@dataclass
class Verdict:
    approved: bool
    advice: str


@default_subscription
class Coder(RoutedAgent):
    def __init__(self, client: ChatCompletionClient) -> None:
        super().__init__("writes code")
        self._client, self._said, self._round = client, [SystemMessage(content="You write Python.")], 0

    async def _work(self, text: str) -> None:
        self._said.append(UserMessage(content=text, source="user"))
        answer = await self._client.create(self._said)
        self._said.append(AssistantMessage(content=str(answer.content), source=self.id.type))
        self._round += 1
        await self.publish_message(Work(str(answer.content), self._round), DefaultTopicId())

    @message_handler
    async def on_wish(self, message: Wish, ctx: MessageContext) -> None:
        await self._work(message.text)

    @message_handler
    async def on_verdict(self, message: Verdict, ctx: MessageContext) -> None:
        if not message.approved:
            await self._work(message.advice)


@default_subscription
class Reviewer(RoutedAgent):
    def __init__(self, client: ChatCompletionClient) -> None:
        super().__init__("reviews code")
        self._client = client

    @message_handler
    async def on_work(self, message: Work, ctx: MessageContext) -> None:
        asked = UserMessage(content=f"Review this: {message.code}", source="coder")
        answer = await self._client.create([SystemMessage(content="You review."), asked])
        await self.publish_message(Verdict(message.round > 1, str(answer.content)), DefaultTopicId())


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    runtime = SingleThreadedAgentRuntime()
    await Coder.register(runtime, "coder", lambda: Coder(client))
    await Reviewer.register(runtime, "reviewer", lambda: Reviewer(client))
    runtime.start()
    await runtime.publish_message(Wish("Sum the even numbers of a list."), DefaultTopicId())
    await runtime.stop_when_idle()
    await client.close()


asyncio.run(main())
