"""Three agents that hear each other: a debate with a moderator (AgentScope 2)."""

import asyncio
import os

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel


async def main() -> None:
    model = OpenAIChatModel(
        OpenAICredential(api_key=os.environ["OPENAI_API_KEY"]), "gpt-4o-mini", stream=False
    )
    alice, bob, judge = (Agent(n, f"You are {n}, in a debate.", model) for n in ("Alice", "Bob", "Judge"))
    said = UserMsg(name="host", content="Is a hot dog a sandwich?")
    for _ in range(2):
        for speaker in (alice, bob):
            answer = await speaker.reply(said)
            said = UserMsg(name=speaker.name, content=answer.get_text_content() or "")
            await judge.observe(said)
    print((await judge.reply(UserMsg(name="host", content="Who is right?"))).get_text_content())


asyncio.run(main())
