"""A leader who gives work to two members, as a stream of events (AgentScope 2)."""

import asyncio
import os

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.pipeline import TeamMember, TeamPipeline
from agentscope.state import AgentState


def agent(name: str, prompt: str) -> Agent:
    model = OpenAIChatModel(OpenAICredential(api_key=os.environ["OPENAI_API_KEY"]), "gpt-4o-mini")
    state = AgentState(permission_context=PermissionContext(mode=PermissionMode.BYPASS))
    return Agent(name, prompt, model, state=state)


async def main() -> None:
    members = [
        TeamMember(agent=agent("reader", "You read sources."), description="reads"),
        TeamMember(agent=agent("writer", "You write."), description="writes"),
    ]
    team = TeamPipeline(agent("leader", "You lead a team."), members)
    async for event in team.reply_stream(UserMsg(name="user", content="A note on rivers.")):
        print(type(event).__name__)


asyncio.run(main())
