"""Agents that the pods of the tests run."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import openai

import agentlightning as agl


async def half(task: float) -> float:
    return task / 2


async def wait_for_file(task: str) -> float:
    """Note that it runs in ``<task>.began``, and go on when the file ``task`` is there."""
    with Path(f"{task}.began").open("a") as file:
        file.write(f"{os.getpid()}\n")
    until = time.monotonic() + 600
    while not Path(task).exists():
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    return 1.0


def exits_with_7(task: Any) -> float:
    os._exit(7)


@agl.rollout
async def ask(task: str, llm: agl.LLM) -> float:
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    async with client:
        said = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task}]
        )
    return float("AGL_TOKEN" in os.environ) + float(bool(said.choices))


async def intrude(task: str) -> float:
    """Try with the runner's token to reach the rollout ``task``, which is another one, and the queue. Return
    how much was reached, and write it into a file.
    """
    from agentlightning.store import StoreError
    from agl_cluster.store.client import StoreClient

    url = sys.argv[sys.argv.index("--store") + 1]
    store, reached = StoreClient(url, os.environ["AGL_TOKEN"]), list[str]()
    tries = {
        "task": lambda: store.get_rollout_by_id(task),
        "attempts": lambda: store.query_attempts(task),
        "spans": lambda: store.spans(task, None),
        "lease": lambda: store.start_attempt(task, worker_id=sys.argv[-1]),
        "queue": lambda: store.dequeue_many_rollouts("me", 5),
        "queue as itself": lambda: store.dequeue_rollout(sys.argv[-1]),
        "list": lambda: store.query_rollouts(),
        "new": lambda: store.start_rollout("mine", worker_id=sys.argv[-1]),
        "resources": lambda: store.query_resources(),
        "token": lambda: store.rollout_token(task, "me"),
        "batch": lambda: store.batch([("spans", {"rollout_id": task, "attempt_id": None})]),
    }
    for name, ask in tries.items():
        try:
            found = await ask()
        except StoreError:
            continue
        if not (isinstance(found, list) and all(isinstance(one, Exception) for one in found)):
            reached.append(name)
    other = Path(f"{task}.other").read_text().split()
    for name, ask in {
        "end": lambda: store.update_attempt(*other, "succeeded"),
        "key": lambda: store.attempt_key(*other),
    }.items():
        try:
            await ask()
            reached.append(name)
        except StoreError:
            pass
    await store.close()
    Path(f"{task}.reached").write_text(" ".join(reached))
    return float(len(reached))
