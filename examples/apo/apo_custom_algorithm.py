"""An algorithm of your own in sixty lines: try prompts, keep the best. Three processes, started in any order:

    agl store                                              # the store, at port 4747
    python examples/apo/apo_custom_algorithm.py runner     # runs the agent
    python examples/apo/apo_custom_algorithm.py algo       # tries the prompts

The agent asks the model MODEL at OPENAI_BASE_URL with the key OPENAI_API_KEY: any OpenAI-compatible endpoint.
``agl.APO`` searches prompts by itself; this script shows what such a search is made of.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl

STORE = os.environ.get("AGL_STORE", "http://127.0.0.1:4747")
PROMPTS = (
    "{question}",
    "Answer with one word: {question}",
    "Answer with one word, in lower case and without a full stop: {question}",
)
TASKS = (
    {"question": "What is the capital of France?", "answer": "paris"},
    {"question": "What is the opposite of hot?", "answer": "cold"},
    {"question": "Which animal says meow?", "answer": "cat"},
)


@agl.rollout
async def agent(task: dict[str, str], prompt_template: agl.PromptTemplate) -> float:
    """Ask the model; the reward is 1.0 for exactly the answer."""
    async with AsyncOpenAI() as client:
        said = await client.chat.completions.create(
            model=os.environ.get("MODEL", "gpt-4.1-nano"),
            messages=[{"role": "user", "content": prompt_template.format(question=task["question"])}],
        )
    return float((said.choices[0].message.content or "").strip() == task["answer"])


async def algo() -> None:
    """Try each prompt on each task, and print the best."""
    store = agl.LightningStoreClient(STORE)
    scores: dict[str, float] = {}
    for prompt in PROMPTS:
        update = await store.add_resources(resources={"prompt_template": prompt})
        made = [await store.enqueue_rollout(input=task, resources_id=update.resources_id) for task in TASKS]
        ids = [rollout.rollout_id for rollout in made]
        await store.wait_for_rollouts(rollout_ids=ids)
        rewards: list[Any] = [agl.find_final_reward(await store.spans(one)) for one in ids]
        scores[prompt] = sum(reward or 0.0 for reward in rewards) / len(rewards)
        print(f"{scores[prompt]:.2f}  {prompt}", flush=True)
    print(f"best: {max(scores, key=scores.__getitem__)}", flush=True)
    await store.close()


async def runner() -> None:
    """Run the agent on rollouts of the store until Ctrl-C."""
    store = agl.LightningStoreClient(STORE)
    work: Any = agl.LitAgentRunner[Any](tracer=agl.OtelTracer())
    with work.run_context(agent=agent, store=store):
        await work.iter()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("algo", "runner"))
    asyncio.run({"algo": algo, "runner": runner}[parser.parse_args().role]())
