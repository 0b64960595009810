"""Agents without a framework, on the openai SDK: sync, async, streamed, several choices, shared clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

import agentlightning as agl
from agentlightning.keys import CONTEXT_KEY
from agentlightning.plugins.manager import build

POLICY = Path(__file__).parents[2] / "examples" / "calc_x" / "policy"
MESSAGES: list[Any] = [{"role": "user", "content": "Ida has 20 coins and gives 6 away. How many are left?"}]
ASK: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 6}


async def plain(task: int, llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        answer = await client.chat.completions.create(model=llm.model, **ASK)
    return float(len(answer.choices))


async def streamed(task: int, llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        chunks = [c async for c in await client.chat.completions.create(model=llm.model, stream=True, **ASK)]
    return float(len(chunks) > 1)


async def two_choices(task: int, llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        answer = await client.chat.completions.create(model=llm.model, n=2, **ASK)
    return float(len(answer.choices))


def synchronous(task: int, llm: agl.LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        answer = client.completions.create(model=llm.model, prompt="Ida has 20 coins", max_tokens=4)
    return float(len(answer.choices))


async def blocking(task: int, llm: agl.LLM) -> float:
    """A synchronous call inside `async def`, as LangGraph's `.invoke` is: the agents' loop waits for it."""
    return synchronous(task, llm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "calls"), [(plain, 1), (streamed, 1), (two_choices, 2), (synchronous, 1), (blocking, 1)]
)
async def test_every_call_is_exact(agent: Callable[..., Any], calls: int, tmp_path: Path) -> None:
    async with session(agent, tmp_path) as context:
        evaluation = await context.evaluate([0, 1, 2], name="x")
    assert evaluation.failed == 0
    assert evaluation.metrics["calls_made"] == evaluation.metrics["calls_exact"] == 3 * calls


async def test_one_client_for_all_rollouts_speaks_for_each(tmp_path: Path) -> None:
    """A client that many rollouts share holds the placeholder key; the wire layer sets each attempt's own."""
    clients: list[AsyncOpenAI] = []

    async def sharing(task: int, llm: agl.LLM) -> float:
        if not clients:
            clients.append(AsyncOpenAI(base_url=llm.endpoint, api_key=CONTEXT_KEY))
        with agl.tagged(agent=f"agent-{task}"):
            await clients[0].chat.completions.create(model=llm.model, **ASK)
        return float(task)

    async with session(sharing, tmp_path) as context:
        evaluation = await context.evaluate(list(range(8)), name="x")
        rollouts = await context.store.query_rollouts(run_id=context.run_id)
        records = await context.store.records([r.rollout_id for r in rollouts])
        await clients[0].close()
    assert evaluation.metrics["calls_exact"] == 8
    assert all([c.tags["agent"] for c in r.calls] == [f"agent-{r.rollout.input}"] for r in records)


@pytest.mark.slow
async def test_another_attempts_key_is_refused_and_counted(tmp_path: Path) -> None:
    keys: list[str] = []

    async def borrowing(task: int, llm: agl.LLM) -> float:
        keys.append(llm.api_key or "")
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=keys[0], max_retries=0) as client:
            await client.chat.completions.create(model=llm.model, **ASK)
        return 1.0

    async with session(borrowing, tmp_path, concurrency=1) as context:
        evaluation = await context.evaluate([0, 1, 2], name="x")
        refused = (await context.store.counts())["refused"]
    assert evaluation.failed == 2  # the first used its own key
    assert sum(refused.values()) == 2, refused


def session(agent: Callable[..., Any], folder: Path, **options: Any) -> Any:
    import agl_local.plugin

    trainer = agl.Trainer(
        agl.RLOO(),
        policy=POLICY,
        options={"engine": "thread", "threads": 1, "max_len": 256},
        output=folder,
        trackers=[],
        plugins=build([agl_local.plugin], discover=False),
        **options,
    )
    return trainer.session(agent)
