"""The desk: it talks with the customer, looks things up and changes them; the database at the end is graded.

agl train --config examples/desk/cpu.yaml
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from desk import customer
from desk.shop import SCHEMAS
from desk.talk import Talk
from desk.tasks import grade


@agl.rollout
async def serve(task: Mapping[str, Any], resources: Mapping[str, Any]) -> float:
    """Serve one customer. The customer is the run's policy ``customer``, if there is one, else a script."""
    llm = next(one for name, one in resources.items() if isinstance(one, agl.LLM) and name != customer.NAME)
    other = resources.get(customer.NAME)
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        with closing(Talk(task["orders"])) as talk:
            while not talk.full:
                said = await customer.says(task["customer"], talk.replies, other)
                if said is None:
                    break
                talk.hear(said)
                with agl.tagged(agent="desk"):
                    await _reply(client, llm.model, talk)
            return grade(task, talk.shop)


async def _reply(client: AsyncOpenAI, model: str, talk: Talk) -> None:
    """Let the model go on until it has replied to the customer."""
    tools: Any = SCHEMAS
    while talk.wants_reply:
        answer = await client.chat.completions.create(model=model, messages=talk.messages, tools=tools)
        message = answer.choices[0].message
        talk.take(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
