"""The agent: one model call that writes an expression; a calculator does the arithmetic.

The bare OpenAI client, as anybody would write it. ``solve`` asks without examples, for a fine-tuned policy;
``solve_few_shot`` shows four solved problems first, for a policy that was never taught the form.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import agentlightning as agl
from word_problems.grading import grade
from word_problems.prompts import Message, few_shot, prompt

MAX_TOKENS = 32
"""Tokens of an answer. The longest gold expression has 14."""
# Reading the certificate store takes 18 ms, all the rest of a client one: once is enough.
TLS = ssl.create_default_context()


@agl.agent(name="solver")
class Solver:
    """Asks the model at ``llm`` for an expression."""

    def __init__(self, llm: agl.LLM) -> None:
        self.llm = llm

    async def run(self, messages: Sequence[Message]) -> str:
        """Return the model's answer to ``messages``."""
        async with AsyncOpenAI(
            base_url=self.llm.endpoint,
            api_key=self.llm.api_key or "none",
            http_client=DefaultAsyncHttpxClient(verify=TLS),
        ) as client:
            response = await client.chat.completions.create(
                model=self.llm.model,
                messages=list(messages),  # type: ignore[arg-type]
                max_tokens=MAX_TOKENS,
            )
        return response.choices[0].message.content or ""


@agl.rollout
async def solve(task: Mapping[str, Any], llm: agl.LLM) -> float:
    """Return 1.0 if the expression that the model writes has the value of the right answer, else 0.0."""
    return grade(await Solver(llm).run(prompt(task["question"])), task["result"])


@agl.rollout
async def solve_few_shot(task: Mapping[str, Any], llm: agl.LLM) -> float:
    """As ``solve``, with four solved problems of the training split before the question."""
    return grade(await Solver(llm).run(few_shot(task["question"])), task["result"])
