"""A step of any size is read from a store's server in bounded memory, at both ends."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from pathlib import Path

from agentlightning import semconv
from agentlightning.algorithms.crediting import StepCrediting
from agentlightning.credit.assign import StepCredit
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore
from agentlightning.store.pages import RECORD_PAGE
from agentlightning.types import AttemptStatus, Call, Rollout, Span
from agentlightning.types.arrays import Floats
from agentlightning.types.tokens import TokenIds, concat
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start

GROUP, TURNS, ASKED, ANSWERED = 8, 5, 900, 100


async def finished(store: SQLiteStore, run: str, count: int) -> list[list[Rollout]]:
    """Make groups of finished rollouts: conversations that grow with each call."""
    chance, groups = random.Random(1), []
    for place in range(count):
        lease = await store.start_rollout(
            {"task": place // GROUP}, run_id=run, group_id=f"{run}-{place // GROUP}", worker_id="w"
        )
        ids = {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
        history = TokenIds()
        for turn in range(TURNS):
            prompt = concat(history, TokenIds(chance.choices(range(50_000), k=ASKED)))
            answer = TokenIds(chance.choices(range(50_000), k=ANSWERED))
            logprobs = Floats([-1.0] * ANSWERED)
            await store.add_calls(
                [
                    Call(
                        call_id=f"{ids['attempt_id']}-{turn}", sequence=turn, policy_version=0,
                        prompt_ids=prompt, response_ids=answer, logprobs=logprobs, finish_reason="stop",
                        sampling={"temperature": 1.0}, **ids,
                    )
                ]
            )  # fmt: skip
            history = concat(prompt, answer)
        value = {semconv.REWARD_VALUE: float(place % 3)}
        reward = Span(name=semconv.REWARD_SPAN, attributes=value, **ids)
        await store.update_attempt(**ids, status=AttemptStatus.SUCCEEDED, returned=[reward])
        if place % GROUP == 0:
            groups.append([])
        groups[-1].append(await store.get_rollout_by_id(lease.rollout.rollout_id))
    return groups


async def credited(client: StoreClient, groups: list[list[Rollout]]) -> tuple[int, int, int]:
    """Credit a step; return its rows, the bytes that stay, and the bytes that were needed beside them."""
    crediting = StepCrediting(
        client, lambda: StepCredit(GRPO(group_size=GROUP), version=0), run_id="r", step=0
    )
    await asyncio.sleep(0)  # the loop holds the last answer until its next turn
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    batch = await crediting.add(groups)
    gc.collect()
    after, peak = tracemalloc.get_traced_memory()
    return len(batch.rows), after - before, peak - after


async def test_memory_beside_the_rows_does_not_grow_with_the_step(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    small, large = await finished(store, "one", RECORD_PAGE), await finished(store, "six", 6 * RECORD_PAGE)
    served = await start(store, port=0)
    client = StoreClient(served.url)
    tracemalloc.start()
    try:
        await credited(client, small)  # what is kept from the first use on: connections, decoders, caches
        rows, kept, beside = await credited(client, small)
        more_rows, more_kept, more_beside = await credited(client, large)
    finally:
        tracemalloc.stop()
        await client.close()
        await served.close()
        await store.close()
    assert (rows, more_rows) == (RECORD_PAGE, 6 * RECORD_PAGE)
    assert more_kept < 7 * kept
    assert more_beside < 1.5 * beside + 2**20
