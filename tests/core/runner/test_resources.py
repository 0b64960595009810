"""An attempt gets the resources of its queued rollout; only the gateway's address is the newest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentlightning.credit.rewards import resolve
from agentlightning.keys import CONTEXT_KEY
from agentlightning.runner.attempt import attempt_resources
from agentlightning.runner.runner import Runner
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import LLM, PromptTemplate

WORTH = {"A": 1.0, "B": 0.0}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


def judged(task: str, prompt_template: PromptTemplate) -> float:
    return WORTH[prompt_template.template]


async def test_rewards_of_one_prompt_never_land_on_another(store: Store) -> None:
    """Rollouts wait while the next prompt is already there: in resources of its own, or as a version."""
    ids: dict[str, list[str]] = {"A": [], "B": []}
    a = await store.add_resources({"prompt_template": "A"})
    ids["A"] += [(await store.enqueue_rollout(i)).rollout_id for i in range(3)]
    ids["A"].append((await store.enqueue_rollout(3, resources_id=a.resources_id)).rollout_id)
    await store.update_resources(a.resources_id, {"prompt_template": "B"})
    ids["B"].append((await store.enqueue_rollout(4, resources_id=a.resources_id)).rollout_id)
    await store.add_resources({"prompt_template": "B"})
    ids["B"] += [(await store.enqueue_rollout(i)).rollout_id for i in range(3)]
    await asyncio.wait_for(Runner(judged, store).serve(limit=8), 300)
    for prompt, its in ids.items():
        assert [resolve(r).final for r in await store.records(its)] == [WORTH[prompt]] * len(its)


async def test_an_endpoint_at_the_gateway_of_the_run_follows_it(store: Store) -> None:
    """After the trainer was started again: the address is new, the prompt is the one that was pinned."""

    def published(port: int, prompt: str, key: str | None = CONTEXT_KEY) -> dict[str, object]:
        llm = LLM(endpoint=f"http://127.0.0.1:{port}/v1", model="policy", api_key=key)
        judge = LLM(endpoint=f"http://judge:{port}/v1", model="judge", api_key="own")
        return {"llm": llm, "judge": judge, "prompt_template": PromptTemplate(template=prompt)}

    first = await store.add_resources(published(1, "A"))  # type: ignore[arg-type]
    rollout = await store.enqueue_rollout(1)
    assert await attempt_resources(store, rollout) == published(1, "A")
    await store.update_resources(first.resources_id, published(2, "B"))  # type: ignore[arg-type]
    expected = {**published(1, "A"), "llm": published(2, "A")["llm"]}
    assert await attempt_resources(store, rollout) == expected


async def test_a_rollout_without_resources_is_given_none(store: Store) -> None:
    assert await attempt_resources(store, (await store.start_rollout(1)).rollout) == {}
