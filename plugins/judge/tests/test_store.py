"""The operation that gives ended rollouts their reward: once, to ended attempts, by trainers alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentlightning.credit.rewards import resolve
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.store import SQLiteStore
from agentlightning.store.base import Conflict, NotFound
from agentlightning.types import AttemptStatus, Call, RolloutConfig
from agl_judge.store import GRADED, Grade, add_group_rewards, is_graded


@pytest.fixture
async def store(tmp_path: Any) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(tmp_path / "store.sqlite")
    yield opened
    await opened.close()


async def ended(store: Any, *, trusted: bool = True, emitted: float | None = None) -> tuple[str, str]:
    """A rollout that succeeded after one call."""
    from agentlightning.capture.emit import returned_reward_span
    from agentlightning.types import Span

    lease = await store.start_rollout(1, run_id="r", config=RolloutConfig(trusted=trusted))
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    call = Call(call_id=f"c-{ids[0]}", rollout_id=ids[0], attempt_id=ids[1], response={"content": "x"})
    await store.add_calls([call])
    if emitted is not None:
        made = returned_reward_span(emitted)
        await store.add_span(
            Span(rollout_id=ids[0], attempt_id=ids[1], name=made.name, attributes=made.attributes)
        )
    await store.update_attempt(*ids, AttemptStatus.SUCCEEDED)
    return ids


async def test_a_grade_is_the_reward_and_an_attempt_gets_one(store: SQLiteStore) -> None:
    ids = await ended(store, emitted=9.0)
    grade = Grade(
        rollout_id=ids[0], attempt_id=ids[1], value=0.25, by="rank", parts={"kind": 1.0}, calls=["ro-x"]
    )
    assert await add_group_rewards(store, [grade]) == 1
    again = Grade(rollout_id=ids[0], attempt_id=ids[1], value=0.75, by="other")
    assert await add_group_rewards(store, [again]) == 0
    (record,) = await store.records([ids[0]])
    assert resolve(record).final == 0.25 and resolve(record).by_name == {"reward": 0.25, "kind": 1.0}
    assert len(record.rewards) == 3  # what the agent said stays on record
    assert is_graded(record.rollout, ids[1]) and record.rollout.metadata[GRADED]["by"] == "rank"


async def test_a_grade_without_a_value_is_missing_whatever_the_agent_said(store: SQLiteStore) -> None:
    ids = await ended(store, emitted=9.0)
    await add_group_rewards(
        store, [Grade(rollout_id=ids[0], attempt_id=ids[1], value=None, by="rank", reason="no-verdict")]
    )
    (record,) = await store.records([ids[0]])
    assert rollout_reward(record).value is None and rollout_reward(record).failure == "no-reward"


async def test_an_agent_without_trust_does_not_count_beside_it(store: SQLiteStore) -> None:
    ids = await ended(store, trusted=False, emitted=9.0)
    await add_group_rewards(store, [Grade(rollout_id=ids[0], attempt_id=ids[1], value=0.5, by="rank")])
    (record,) = await store.records([ids[0]])
    assert resolve(record).final == 0.5 and resolve(record).missing == {"by-agent": 1}


async def test_only_the_latest_attempt_of_what_has_ended_is_graded_all_or_none(store: SQLiteStore) -> None:
    good = await ended(store)
    running = await store.start_rollout(2, run_id="r")
    late = Grade(
        rollout_id=running.rollout.rollout_id, attempt_id=running.attempt.attempt_id, value=1.0, by="rank"
    )
    fine = Grade(rollout_id=good[0], attempt_id=good[1], value=1.0, by="rank")
    with pytest.raises(Conflict, match="has not ended"):
        await add_group_rewards(store, [fine, late])
    with pytest.raises(NotFound):
        await add_group_rewards(
            store, [fine, Grade(rollout_id=good[0], attempt_id="at-x", value=1.0, by="rank")]
        )
    (record,) = await store.records([good[0]])
    assert record.rewards == [] and GRADED not in record.rollout.metadata


async def test_an_attempt_that_follows_is_graded_anew(store: SQLiteStore) -> None:
    ids = await ended(store)
    await add_group_rewards(store, [Grade(rollout_id=ids[0], attempt_id=ids[1], value=1.0, by="rank")])
    await store.requeue_rollouts([ids[0]], reason="cancelled: again")
    lease = await store.start_attempt(ids[0])
    await store.update_attempt(ids[0], lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    (record,) = await store.records([ids[0]])
    assert not is_graded(record.rollout, lease.attempt.attempt_id) and record.rewards == []


async def test_a_server_takes_it_from_a_trainer_and_not_from_a_runner(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("agl_cluster")
    from agl_cluster.roles import Role, RoleTokens
    from agl_cluster.store.client import StoreClient
    from agl_cluster.store.outcomes import Forbidden
    from agl_cluster.store.server import start

    secret = b"a secret of the tests, which is long enough"
    monkeypatch.setenv("AGL_SECRET", secret.decode())
    served = await start(store, port=0)
    ids = await ended(store)
    grade = Grade(rollout_id=ids[0], attempt_id=ids[1], value=1.0, by="rank")
    runner = StoreClient(served.url, RoleTokens(secret).issue(Role.RUNNER)[0])
    trainer = StoreClient(served.url, RoleTokens(secret).issue(Role.TRAINER)[0])
    try:
        with pytest.raises(Forbidden, match="needs the role trainer"):
            await add_group_rewards(runner, [grade])
        assert await add_group_rewards(trainer, [grade]) == 1
    finally:
        await runner.close()
        await trainer.close()
        await served.close()
