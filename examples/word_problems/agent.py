"""The agent: one model call that writes an expression; a calculator does the arithmetic.

The bare OpenAI client, as anybody would write it. ``solve`` asks without examples, for a fine-tuned policy;
``solve_few_shot`` shows four solved problems first, for a policy that was never taught the form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from agentlightning.types import LLM
from word_problems.grading import grade
from word_problems.prompts import Message, few_shot, prompt

MAX_TOKENS = 32
"""Tokens of an answer. The longest gold expression has 20."""


async def answer(messages: Sequence[Message], llm: LLM) -> str:
    """Return the model's answer to ``messages``."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        response = await client.chat.completions.create(
            model=llm.model,
            messages=list(messages),  # type: ignore[arg-type]
            max_tokens=MAX_TOKENS,
        )
    return response.choices[0].message.content or ""


@agl.rollout
async def solve(task: Mapping[str, Any], llm: LLM) -> float:
    """Return 1.0 if the expression that the model writes has the value of the right answer, else 0.0."""
    return grade(await answer(prompt(task["question"]), llm), task["result"])


@agl.rollout
async def solve_few_shot(task: Mapping[str, Any], llm: LLM) -> float:
    """As ``solve``, with four solved problems of the training split before the question."""
    return grade(await answer(few_shot(task["question"]), llm), task["result"])
