"""The desk: it talks with the customer, looks things up and changes them; the database at the end is graded.

agl train --config examples/desk/cpu.yaml
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from desk import customer
from desk.shop import SCHEMAS, Shop
from desk.tasks import grade

POLICY = (Path(__file__).parent / "policy.md").read_text(encoding="utf-8")
REPLIES, CALLS = 4, 6
"""The desk's replies in a talk, and its model calls for one of them."""


@agl.rollout
async def serve(task: Mapping[str, Any], resources: Mapping[str, Any]) -> float:
    """Serve one customer. The customer is the run's policy ``customer``, if there is one, else a script."""
    llm = next(one for name, one in resources.items() if isinstance(one, agl.LLM) and name != customer.NAME)
    other, heard = resources.get(customer.NAME), list[str]()
    messages: list[Any] = [{"role": "system", "content": POLICY}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        with closing(Shop(task["orders"])) as shop:
            while len(heard) < REPLIES:
                said = await customer.says(task["customer"], heard, other)
                if said is None:
                    break
                messages.append({"role": "user", "content": said})
                with agl.tagged(agent="desk"):
                    heard.append(await _reply(client, llm.model, messages, shop))
            return grade(task, shop)


async def _reply(client: AsyncOpenAI, model: str, messages: list[Any], shop: Shop) -> str:
    """The desk's next reply, after the tools that it asked for; all of it goes to ``messages``."""
    tools: Any = SCHEMAS
    for _ in range(CALLS):
        answer = await client.chat.completions.create(model=model, messages=messages, tools=tools)
        message = answer.choices[0].message
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            said = shop.call(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    return ""
