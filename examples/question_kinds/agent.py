"""The agent: one call of a model, which may write nothing but the name of a kind (guided choice)."""

from __future__ import annotations

from typing import Final

from openai import AsyncOpenAI

import agentlightning as agl
from question_kinds.tasks import KINDS, Task

FIRST: Final = "What kind of question is this: average, count, list or most?\n{question}"
"""The prompt that the search begins with: as a developer would write it at first."""


@agl.rollout
async def agent(task: Task, llm: agl.LLM, prompt_template: agl.PromptTemplate) -> float:
    """Return 1.0 if the model names the kind of the question, else 0.0."""
    prompt = prompt_template.format(question=task["question"])
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        answer = await client.chat.completions.create(
            model=llm.model,
            messages=[{"role": "user", "content": prompt}],
            max_completion_tokens=8,
            temperature=0.0,
            extra_body={"guided_choice": list(KINDS)},
        )
    return float((answer.choices[0].message.content or "").strip() == task["answer"])
