"""The agent, on the openai package alone: a loop that runs the tools which the model calls."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from reward import score
from tools import calculate

TURNS = 4
CALCULATE: Any = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculate the value of an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


async def answer(question: str, llm: agl.LLM) -> str:
    """Answer a question with the model at ``llm``."""
    messages: list[Any] = [
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": question},
    ]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(TURNS):
            reply = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=[CALCULATE]
            )
            said = reply.choices[0].message
            if not said.tool_calls:
                return said.content or ""
            messages.append(said.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": called(call)} for call in said.tool_calls
            ]
    return ""


def called(call: Any) -> str:
    """Return what a call of the calculator gives; of one that is wrong, the error, which the model reads."""
    try:
        return calculate(**json.loads(call.function.arguments))
    except (TypeError, ValueError) as error:
        return f"error: {error}"


@agl.rollout
async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one task, and return the reward."""
    with agl.tagged(agent="solver"):  # the name of its calls: the openai package knows none
        return score(task, await answer(task["question"], llm))
