"""The gateway on the real SQLite store: what was answered is on file, late writes are refused and counted."""

import asyncio

import pytest

from agentlightning.gateway import AttemptInfo
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus

from .conftest import PROMPT, tokens_of


@pytest.fixture
async def store(tmp_path):
    store = SQLiteStore(tmp_path / "store.sqlite")
    yield store
    await store.close()


async def lease(world, **fields):
    """A started rollout whose attempt is open at the gateway; the lease and its key."""
    lease = await world.store.start_rollout({"q": 1}, worker_id="w", **fields)
    rollout, attempt = lease.rollout, lease.attempt
    info = AttemptInfo(
        rollout_id=rollout.rollout_id,
        attempt_id=attempt.attempt_id,
        fence=attempt.fence,
        mode=rollout.mode,
        seed=3,
    )
    return rollout, attempt, world.gateway.open_attempt(info)


async def test_an_answered_call_is_in_the_record(world):
    rollout, _, key = await lease(world)
    await asyncio.gather(*(world.post({"n": 2}, key=key) for _ in range(10)))
    await world.post({"stream": True}, key=key)
    (record,) = await world.store.records([rollout.rollout_id])
    assert [(c.sequence, c.choice) for c in record.calls[:20]] == [
        (i, k) for i in range(10) for k in range(2)
    ]
    ids, logprobs = tokens_of("hello there world")
    for call in record.calls:
        assert (call.prompt_ids, call.response_ids, call.status) == (PROMPT, ids, "ok")
        assert call.logprobs == pytest.approx(logprobs)


async def test_a_zombies_call_is_refused_by_the_store_too(world):
    rollout, attempt, key = await lease(world)
    await world.store.update_attempt(rollout.rollout_id, attempt.attempt_id, AttemptStatus.FAILED, reason="x")
    assert (await world.post(key=key)).status == 409
    assert (await world.store.records([rollout.rollout_id]))[0].calls == []
    await world.gateway.close_attempt(attempt.attempt_id)
    assert (await world.post(key=key)).status == 409
    counts = await world.store.counts(rollout.rollout_id)
    assert counts["refused"]["attempt-ended"] == 2


async def test_an_attempt_opened_in_another_process(world):
    lease = await world.store.start_rollout({"q": 1}, mode="val", worker_id="w")
    rollout, attempt = lease.rollout, lease.attempt
    key = world.keys.mint(rollout.rollout_id, attempt.attempt_id, fence=attempt.fence)
    assert [(await world.post(key=key)).status for _ in range(2)] == [200, 200]
    assert [c.sequence for c in await world.store.query_calls(rollout.rollout_id)] == [0, 1]


async def test_hanging_up_during_the_commit_loses_nothing_and_doubles_nothing(world):
    rollout, _, key = await lease(world)
    add_calls, started, told = world.store.add_calls, asyncio.Event(), []

    async def slow(calls, *, fence=None):
        await add_calls(calls, fence=fence)
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()

    world.store.add_calls = slow
    world.gateway._pipeline.writer.on_call = lambda call: told.append(call.call_id)
    asking = asyncio.create_task(world.post(key=key))
    await started.wait()
    asking.cancel()
    while not told:
        await world.metrics()
    assert [c.status for c in await world.store.query_calls(rollout.rollout_id)] == ["ok"]
    assert (await world.metrics())["calls"] == {"ok": 1}
