"""The operations that agl-audit adds to every store: sums, deletion of runs, rewards given afterwards."""

from __future__ import annotations

import asyncio

import pytest
from contract.paging import DONE, finish, leased
from contract.storing import Clock, call, reward, span
from contract.trying import NO_TIMES

from agentlightning import semconv
from agentlightning.store.base import Conflict, NotFound, Store
from agentlightning.types import (
    AttemptStatus,
    AuditLink,
    Reward,
    RolloutFingerprint,
    RolloutStatus,
    StepReport,
)
from agl_audit.store.reward_versions import Rescored, RewardVersion


def version(name: str = "v", **fields: object) -> RewardVersion:
    """A version of the rewards of the run ``r``."""
    given: dict[str, object] = {"function": "grading:score", "digest": "d1", **fields}
    return RewardVersion(**{"run_id": "r", "name": name, **given})  # type: ignore[arg-type]


def entry(rollout_id: str, value: float | None = 1.0, name: str = "v", **fields: object) -> Rescored:
    """What a version has for a rollout."""
    rewards = [] if value is None else [Reward(value=value)]
    return Rescored(rollout_id=rollout_id, version=name, rewards=rewards, **fields)  # type: ignore[arg-type]


class AddedOperationsContract:
    """Statistics, retention, and versions of rewards. A test module that inherits it provides ``store``."""

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

    # -- sums

    async def test_statistics_count_everything(self, store: Store) -> None:
        lease = await leased(store)
        await store.add_calls([call(lease)])
        found = await store.statistics()
        assert found["rollouts"] == {"running": 1} and found["calls"] == 1 and found["spans"] == 0

    async def test_statistics_of_a_run(self, store: Store, clock: Clock) -> None:
        for i in range(10):
            lease = await leased(store, "r")
            asked = {"prompt_tokens": 10} if i else {}
            timed = {"start_time": 5.0, "end_time": 6.0 + i}
            await store.add_calls([call(lease, **asked, **timed), call(lease, choice=1, **asked, **timed)])
            await store.add_span(reward(lease, 1.0))
            clock.now += 2
            await finish(store, lease, AttemptStatus.FAILED if i == 3 else DONE)
        await leased(store, "other")
        found = await store.statistics("r")
        assert found["rollouts"] == {"succeeded": 9, "failed": 1} == found["attempts"]
        assert (found["calls"], found["spans"]) == (20, 10)
        assert found["tokens"] == {"prompt": 93, "completion": 40} and found["call_bytes"] > 20 * 20
        seconds = {"mean": 5.5, "p50": 5.0, "p90": 9.0, "p99": 10.0, "max": 10.0}
        assert found["call_seconds"] == seconds
        assert found["attempt_seconds"] == {k: 2.0 for k in seconds}
        assert found["work"] == {"w": {"attempts": {"succeeded": 9, "failed": 1}, "busy_seconds": 20.0}}
        nothing = await store.statistics("nobody")
        assert (nothing["calls"], nothing["rollouts"], nothing["call_seconds"]) == (0, {}, {})
        clock.now += 1
        everything = await store.statistics()
        assert everything["work"]["w"] == {
            "attempts": {"succeeded": 9, "failed": 1, "preparing": 1},
            "busy_seconds": 21.0,
        }
        assert everything["tokens"] == found["tokens"] and everything["bytes"] > everything["free_bytes"] >= 0

    # -- retention

    async def fill(self, store: Store, run_id: str, resources_id: str | None = None, n: int = 30) -> None:
        """A finished run."""
        await store.add_run(run_id, {})
        for _ in range(n):
            lease = await leased(store, run_id, resources_id=resources_id)
            await store.add_calls([call(lease)])
            await store.add_span(reward(lease, 1.0))
            await store.count("dropped", "stale", rollout_id=lease.rollout.rollout_id)
            await finish(store, lease)
        fingerprint = RolloutFingerprint(
            run_id=run_id, step=0, policy="p", rollout_id=lease.rollout.rollout_id
        )
        report = StepReport(run_id=run_id, step=0, policy="p", policy_version=1)
        await store.add_step(
            report, [fingerprint], link=AuditLink(run_id=run_id, number=0, kind="step", name="0/p")
        )

    async def test_a_run_is_deleted_with_all_it_made(self, store: Store) -> None:
        shared, own = await store.add_resources({"p": "shared"}), await store.add_resources({"p": "own"})
        await store.add_resources({"p": "latest"})
        await self.fill(store, "keep", shared.resources_id, 2)
        before = await store.statistics()
        await self.fill(store, "gone", own.resources_id)
        await self.fill_one(store, "gone", shared.resources_id)
        queued = await store.enqueue_rollout(1, run_id="gone")
        deleted = [await store.delete_run("gone", request_id="d") for _ in range(2)]
        assert (
            deleted[0]
            == deleted[1]
            == {
                **{"rollouts": 32, "attempts": 31, "calls": 30, "spans": 30, "counts": 30},
                **{
                    "fingerprints": 1,
                    "steps": 1,
                    "links": 1,
                    "runs": 1,
                    "notes": 0,
                    "resources": 1,
                },
            }
        )
        after = await store.statistics()
        for name in ("rollouts", "attempts", "calls", "spans", "runs"):
            assert after[name] == before[name], name
        assert after["resources"] == 2 and len(await store.query_fingerprints("keep")) == 1
        assert await store.counts() == {"dropped": {"stale": 2}}
        with pytest.raises(NotFound):
            await store.get_rollout_by_id(queued.rollout_id)
        with pytest.raises(NotFound):
            await store.get_resources_by_id(own.resources_id)
        with pytest.raises(NotFound, match="no run gone"):
            await store.delete_run("gone")
        await self.fill(store, "gone", None, 1)  # the name is free again

    async def fill_one(self, store: Store, run_id: str, resources_id: str) -> None:
        """One rollout more, cancelled."""
        lease = await leased(store, run_id, resources_id=resources_id)
        await store.update_rollout(lease.rollout.rollout_id, RolloutStatus.CANCELLED)

    async def test_a_run_at_work_is_not_deleted(self, store: Store) -> None:
        await self.fill(store, "r", None, 1)
        lease = await leased(store, "r")
        with pytest.raises(Conflict, match=r"run r is at work: attempt at-.* of worker w is live"):
            await store.delete_run("r")
        assert (await store.prune(keep_runs=0))["kept"] == 1
        await store.add_span(span(lease, semconv.REWARD_SPAN))
        await finish(store, lease)
        assert (await store.prune(run_id="r"))["rollouts"] == 2

    async def test_pruning_by_age_and_number(self, store: Store, clock: Clock) -> None:
        for i in range(4):
            await self.fill(store, f"r{i}", None, 1)
            clock.now += 100
        await store.enqueue_rollout(1, run_id="waits")
        loose = await leased(store)
        await finish(store, loose)
        with pytest.raises(ValueError, match="say what"):
            await store.prune()
        with pytest.raises(ValueError, match="run_id alone"):
            await store.prune(run_id="r1", keep_runs=1)
        with pytest.raises(ValueError, match="older_than"):
            await store.prune(older_than=-1.0)
        assert await store.prune(older_than=1000.0) == {"kept": 0}
        gone = await store.prune(older_than=250.0, keep_runs=3)
        assert (gone["runs"], gone["kept"]) == (2, 0)
        assert [r["run_id"] for r in await store.query_runs()] == ["r3", "r2"]
        clock.now += 1000
        assert (await store.prune(older_than=500.0, keep_runs=2, request_id="p"))["rollouts"] == 2
        assert (await store.prune(keep_runs=0)) == {"kept": 1, **dict.fromkeys(GONE, 0), **ONE_RUN}
        assert {r.run_id for r in await store.query_rollouts()} == {"waits"}

    async def test_a_time_that_no_timer_can_keep_is_refused(self, store: Store) -> None:
        for value in NO_TIMES:
            with pytest.raises(ValueError, match="older_than"):
                await store.prune(older_than=value)


GONE = (
    "rollouts",
    "attempts",
    "calls",
    "spans",
    "counts",
    "fingerprints",
    "steps",
    "links",
    "runs",
    "resources",
    "notes",
)
ONE_RUN = dict.fromkeys(GONE[:-2], 1)
