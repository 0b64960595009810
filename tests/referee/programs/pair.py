"""Agents whose rewards are of every kind: any number, none, given to an agent, and failures."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from calc_x.agent import solve


@agl.rollout
async def play(task: dict[str, Any], llm: agl.LLM) -> float | None:
    """Three calls of two agents. What was said decides whether it fails, and how it is rewarded."""
    text = ""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for agent in ("first", "second", "second"):
            with agl.tagged(agent=agent):
                asked: Any = [{"role": "user", "content": f"{task['question']} {text}"}]
                reply = await client.chat.completions.create(model=llm.model, max_tokens=5, messages=asked)
            text += reply.choices[0].message.content or ""
            if len(task["question"]) % 7 == sum(map(ord, text)) % 7:
                raise RuntimeError("the game ended early")
    worth = sum(map(ord, text)) % 5
    if worth == 4:
        return None
    if worth == 3:
        for number, agent in enumerate(("first", "second")):
            agl.emit_reward(float(number + len(text) % 3), agent=agent)
        return None
    return float(worth)


@agl.rollout
async def partly(task: dict[str, Any], llm: agl.LLM) -> float:
    """One call. From sums alone nothing is learned: all answers earn the same."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        asked: Any = [{"role": "user", "content": task["question"]}]
        reply = await client.chat.completions.create(model=llm.model, max_tokens=8, messages=asked)
    said = reply.choices[0].message.content or ""
    return 1.0 if task["kind"] == "add" else float(sum(map(ord, said)) % 5)


@agl.rollout
async def brief(task: dict[str, Any], llm: agl.LLM) -> float:
    """The calculator's agent, which long questions cost something."""
    return await solve(task, llm) - len(task["question"]) / 1000
