"""An agent with a tool (AgentScope 2)."""

import asyncio
import os

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: its name
    """
    return f"sunny in {city}"


async def main() -> None:
    friday = Agent(
        name="Friday",
        system_prompt="You're a helpful assistant named Friday.",
        model=OpenAIChatModel(OpenAICredential(api_key=os.environ["OPENAI_API_KEY"]), "gpt-4o-mini"),
        toolkit=Toolkit(tools=[FunctionTool(get_weather)]),
        state=AgentState(permission_context=PermissionContext(mode=PermissionMode.BYPASS)),
    )
    answer = await friday.reply(UserMsg(name="user", content="What is the weather in Paris?"))
    print(answer.get_text_content())


asyncio.run(main())
