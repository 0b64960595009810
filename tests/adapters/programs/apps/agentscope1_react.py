"""A ReAct agent with a tool (AgentScope 1.0)."""

import asyncio
import os

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse


def get_weather(city: str) -> ToolResponse:
    """Get the weather of a city.

    Args:
        city (str): its name
    """
    return ToolResponse(content=[TextBlock(type="text", text=f"sunny in {city}")])


async def main() -> None:
    toolkit = Toolkit()
    toolkit.register_tool_function(get_weather)
    friday = ReActAgent(
        name="Friday",
        sys_prompt="You're a helpful assistant named Friday.",
        model=OpenAIChatModel("gpt-4o-mini", api_key=os.environ["OPENAI_API_KEY"], stream=True),
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
        memory=InMemoryMemory(),
    )
    await friday(Msg("user", "What is the weather in Paris?", "user"))


asyncio.run(main())
