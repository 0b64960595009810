"""The calc_x agent with a fifth of its attempts broken, each in one of nine ways; evaluated, it is healthy.

Whether and how an attempt fails is a function of its rollout's seed and its number, so that two runs of one
seed break the same attempts.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agentlightning import LLM
from agentlightning.types import Rollout
from calc_x import agent as healthy

SHARE = 0.2
BROKEN = "broken"
"""Name of the model whose engine cannot be reached."""
WAYS = (
    "raises", "exits", "makes no call", "returns nan", "hangs", "is cancelled", "model 4xx", "model 5xx",
    "over-length",
)  # fmt: skip
cancel: asyncio.Queue[str] = asyncio.Queue()
"""Ids of rollouts that somebody is to cancel in the store; a queue of its own for each event loop."""


async def solve(task: Mapping[str, Any], llm: LLM, rollout: Rollout) -> float:
    """Answer as calc_x does; in training, break now and then."""
    way = way_of(rollout)
    if way == "makes no call":
        return 1.0  # a reward that nobody may learn from
    reward = await healthy.solve(task, llm)
    if way == "raises":
        raise RuntimeError("the tool server is gone")
    if way == "exits":
        raise SystemExit(3)
    if way in ("hangs", "is cancelled"):
        if way == "is cancelled":
            cancel.put_nowait(rollout.rollout_id)
        await asyncio.Event().wait()
    if way == "model 4xx":
        await ask(llm, llm.model, logit_bias={"not a token": 1})
    if way == "model 5xx":
        await ask(llm, BROKEN)
    if way == "over-length":
        await ask(llm, llm.model, text="one more word " * 1000)
    return math.nan if way == "returns nan" else reward


def way_of(rollout: Rollout) -> str | None:
    """How this attempt breaks; ``None``: it does not. In evaluation none does."""
    if rollout.mode != "train":
        return None
    chance = random.Random(f"{rollout.seed}/{rollout.attempts}")
    return chance.choice(WAYS) if chance.random() < SHARE else None


async def ask(llm: LLM, model: str, text: str = "hello", **options: Any) -> None:
    """A call that cannot succeed; its error is the agent's end."""
    http = DefaultAsyncHttpxClient(verify=healthy.TLS)
    async with AsyncOpenAI(
        base_url=llm.endpoint, api_key=llm.api_key, max_retries=1, http_client=http
    ) as client:
        await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], **options
        )
