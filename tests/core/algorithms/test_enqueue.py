"""Work is queued once; work of a run that broke off is queued again, to be tried as it would be today."""

from __future__ import annotations

from pathlib import Path

from agentlightning.algorithms.queue import enqueue
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Rollout, RolloutConfig, RolloutStatus


def batch(timeout: float) -> list[Rollout]:
    config = RolloutConfig(timeout_seconds=timeout, max_attempts=2)
    return [Rollout(rollout_id=f"ro-{n}", run_id="r", input=n, config=config) for n in range(3)]


async def test_what_was_begun_is_queued_again_under_todays_limits(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    assert await enqueue(store, batch(60.0)) == ["ro-0", "ro-1", "ro-2"]
    first, _ = await store.dequeue_many_rollouts("w", 2)
    ids = first.rollout.rollout_id, first.attempt.attempt_id
    await store.update_attempt(*ids, AttemptStatus.FAILED, reason="timeout: longer than 60 s")
    assert await enqueue(store, batch(600.0)) == ["ro-0", "ro-1", "ro-2"]
    known = await store.query_rollouts(run_id="r")
    assert [r.config.timeout_seconds for r in known] == [600.0] * 3
    assert [r.status for r in known] == [RolloutStatus.REQUEUING] * 2 + [RolloutStatus.QUEUING]
    assert [lease.rollout.config for lease in await store.dequeue_many_rollouts("w", 3)] == [
        r.config for r in batch(600.0)
    ]
    await store.close()
