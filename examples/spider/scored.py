"""The agent with a reward for every model call, for the credit rule ``per_call``.

A query that is written earns what it would have earned as the last one; a review earns 1.0 if its verdict is
true. That the agent may be asked which of its calls were good is a luxury of this task: the gold query is at
hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import agentlightning as agl
from spider.agent import Llm, SqlAgent, State, brief
from spider.databases import databases_of
from spider.prompts import is_right, query_in
from spider.sql.matching import match


class ScoredAgent:
    """``run(task, llm)`` as of the agent that is given, and a reward emitted for each of its calls."""

    def __init__(self, agent: SqlAgent) -> None:
        self.agent = agent

    async def run(self, task: Mapping[str, Any], llm: Llm) -> float:
        """The reward of the last query."""
        final = await self.agent.answer(task, llm)
        scores = await asyncio.to_thread(self.scores, task, final)
        for message, score in zip(final["messages"], scores, strict=True):
            agl.emit_reward(score, call=message.response_metadata["id"])
        return [s for m, s in zip(final["messages"], scores, strict=True) if m.name != "check"][-1]

    def scores(self, task: Mapping[str, Any], final: State) -> list[float]:
        """What each message of a run is worth."""
        scores: list[float] = []
        query, good = "", 0.0
        for message in final["messages"]:
            if message.name == "check":
                scores.append(float(is_right(message.text) is (good == 1.0)))
                continue
            query = query_in(message.text, otherwise=query if message.name == "rewrite" else None)
            good = match(task["query"], query, databases_of(task), self.agent.budget.sql).reward
            scores.append(good)
        return scores


agent = ScoredAgent(brief)
