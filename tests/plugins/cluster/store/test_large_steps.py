"""A step of any size is read from a store's server in bounded memory, at both ends."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
import weakref
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Memory:
    """Bytes of a credited step."""

    rows: int
    """Number of its rows."""
    of_rows: int
    """The bytes of its rows: they are freed last."""
    kept: int
    """What its credit keeps beside the rows."""
    needed: int
    """What was needed for a while beside both."""


async def credited(client: StoreClient, groups: list[list[Rollout]]) -> Memory:
    """Credit a step, and free it again, part by part."""
    steps: list[weakref.ref[StepCredit]] = []

    def make() -> StepCredit:
        made = StepCredit(GRPO(group_size=GROUP), version=0)
        steps.append(weakref.ref(made))
        return made

    crediting = StepCrediting(client, make, run_id="r", step=0)
    tracemalloc.reset_peak()
    batch = await crediting.add(groups)
    gc.collect()
    whole, peak = tracemalloc.get_traced_memory()
    del crediting
    while any(step() is not None for step in steps):  # the thread that made the batch still lets go of it
        await asyncio.sleep(0.001)
        gc.collect()
    with_rows, rows = tracemalloc.get_traced_memory()[0], len(batch.rows)
    del batch
    await asyncio.sleep(0)  # the loop holds the last answer until its next turn
    gc.collect()
    return Memory(
        rows, with_rows - tracemalloc.get_traced_memory()[0], max(whole - with_rows, 0), peak - whole
    )


async def test_memory_beside_the_rows_does_not_grow_with_the_step(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    small, large = await finished(store, "one", RECORD_PAGE), await finished(store, "six", 6 * RECORD_PAGE)
    served = await start(store, port=0)
    client = StoreClient(served.url)
    tracemalloc.start()
    try:
        await credited(client, small)  # what is kept from the first use on: connections, decoders, caches
        one, six = await credited(client, small), await credited(client, large)
    finally:
        tracemalloc.stop()
        await client.close()
        await served.close()
        await store.close()
    assert (one.rows, six.rows) == (RECORD_PAGE, 6 * RECORD_PAGE)
    assert 5 * one.of_rows < six.of_rows < 7 * one.of_rows
    assert six.kept < 0.08 * six.of_rows
    assert six.needed < 1.5 * one.needed + 2**20
