"""Rewards that are given afterwards, as every store keeps them: beside the original ones, once each."""

from __future__ import annotations

import asyncio

import pytest
from contract.storing import Clock, reward

from agentlightning.store.base import Conflict, NotFound, Store
from agentlightning.types import AttemptStatus, Reward
from agl_audit.store.reward_versions import Rescored, RewardVersion


def version(name: str = "v", **fields: object) -> RewardVersion:
    """A version of the rewards of the run ``r``."""
    given: dict[str, object] = {"function": "grading:score", "digest": "d1", **fields}
    return RewardVersion(**{"run_id": "r", "name": name, **given})  # type: ignore[arg-type]


def entry(rollout_id: str, value: float | None = 1.0, name: str = "v", **fields: object) -> Rescored:
    """What a version has for a rollout."""
    rewards = [] if value is None else [Reward(value=value)]
    return Rescored(rollout_id=rollout_id, version=name, rewards=rewards, **fields)  # type: ignore[arg-type]


class RescoredContract:
    """Versions of rewards."""

    async def _ended(self, store: Store, value: float = 0.25) -> str:
        lease = await store.start_rollout({"q": 1}, run_id="r")
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED, returned=[reward(lease, value)])
        return ids[0]

    async def test_a_version_stands_beside_the_original_rewards(self, store: Store, clock: Clock) -> None:
        await store.add_run("r", {})
        first, second = await self._ended(store), await self._ended(store)
        made = await store.add_reward_version(version(code={"commit": "abc", "dirty": True}))
        assert made.create_time == clock.now and await store.query_reward_versions("r") == [made]
        assert await store.add_rescored([entry(first, 0.75), entry(second, None)]) == 2
        found = await store.rescored([second, first], "v")
        assert [(one.rollout_id, [r.value for r in one.rewards]) for one in found] == [
            (second, []),
            (first, [0.75]),
        ]
        assert await store.rescored([first], "w") == [] == await store.query_reward_versions("other")
        (record,) = await store.records([first])
        assert [r.value for r in record.rewards] == [0.25]

    async def test_a_version_is_of_one_function(self, store: Store, clock: Clock) -> None:
        made = await store.add_reward_version(version())
        clock.now += 5
        assert await store.add_reward_version(version(code={"commit": "later"})) == made
        for other in ({"digest": "d2"}, {"function": "m:f"}, {"per": "call"}, {"agent": "a"}):
            with pytest.raises(Conflict, match="another name"):
                await store.add_reward_version(version(**other))
        with pytest.raises(ValueError, match="name"):
            await store.add_reward_version(version(""))

    async def test_a_reward_stays_and_an_error_is_replaced(self, store: Store) -> None:
        one = await self._ended(store)
        await store.add_reward_version(version())
        failed = entry(one, None, error="it raised", traceback="line 1")
        assert [await store.add_rescored([failed]) for _ in range(2)] == [1, 1]
        assert await store.rescored([one], "v") == [failed]
        assert await store.add_rescored([entry(one, 0.5)]) == 1
        assert await store.add_rescored([entry(one, 0.9)]) == 0 == await store.add_rescored([failed])
        (kept,) = await store.rescored([one], "v")
        assert kept.error is None and [r.value for r in kept.rewards] == [0.5]

    async def test_two_processes_store_each_reward_once(self, store: Store) -> None:
        ids = [await self._ended(store) for _ in range(6)]
        await store.add_reward_version(version())
        stored = await asyncio.gather(
            *(store.add_rescored([entry(one, float(n))]) for n in range(3) for one in ids)
        )
        assert sum(stored) == 6 and len(await store.rescored(ids, "v")) == 6

    async def test_entries_need_their_rollout_and_version(self, store: Store) -> None:
        one = await self._ended(store)
        alone = (await store.start_rollout({"q": 1})).rollout.rollout_id
        with pytest.raises(NotFound, match="has no rewards v"):
            await store.add_rescored([entry(one)])
        await store.add_reward_version(version())
        with pytest.raises(NotFound, match="no rollout ro-x"):
            await store.add_rescored([entry(one), entry("ro-x")])
        with pytest.raises(NotFound, match="has no rewards v"):
            await store.add_rescored([entry(alone)])
        with pytest.raises(ValueError, match="not both"):
            await store.add_rescored([entry(one, error="e")])
        assert await store.rescored([one], "v") == []

    async def test_versions_are_paged_and_deleted_with_their_run(self, store: Store) -> None:
        await store.add_run("r", {})
        one = await self._ended(store)
        made = [await store.add_reward_version(version(f"v{n}")) for n in (3, 1, 2)]
        await store.add_rescored([entry(one, name="v1")])
        assert await store.query_reward_versions("r", limit=2) == made[:2]
        assert await store.query_reward_versions("r", limit=2, after=made[1].name) == made[2:]
        with pytest.raises((NotFound, ValueError), match="after"):
            await store.query_reward_versions("r", after="v9")
        deleted = await store.delete_run("r")
        assert deleted["notes"] == 4
        assert await store.query_reward_versions("r") == []
