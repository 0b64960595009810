"""The operations that agl-audit adds to every store: sums, deletion of runs, rewards given afterwards,
traces, fingerprints and workers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from contract.paging import DONE, finish, flat, leased
from contract.storing import Clock, call, reward, span
from contract.trying import NO_TIMES

from agentlightning import semconv
from agentlightning.store.base import Conflict, NotFound, Store
from agentlightning.store.pages import pages
from agentlightning.types import (
    AttemptStatus,
    AuditLink,
    Reward,
    RolloutFingerprint,
    RolloutStatus,
    Span,
    StepReport,
)
from agl_audit.behaviour.rollout import ToolRuns
from agl_audit.store.reward_versions import Rescored, RewardVersion
from agl_audit.store.tools import tool_runs


def version(name: str = "v", **fields: object) -> RewardVersion:
    """A version of the rewards of the run ``r``."""
    given: dict[str, object] = {"function": "grading:score", "digest": "d1", **fields}
    return RewardVersion(**{"run_id": "r", "name": name, **given})  # type: ignore[arg-type]


def entry(rollout_id: str, value: float | None = 1.0, name: str = "v", **fields: object) -> Rescored:
    """What a version has for a rollout."""
    rewards = [] if value is None else [Reward(value=value)]
    return Rescored(rollout_id=rollout_id, version=name, rewards=rewards, **fields)  # type: ignore[arg-type]


class AddedOperationsContract:
    """Statistics, retention, versions of rewards, traces, fingerprints and workers. A test module that
    inherits it provides ``store``.
    """

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

    async def test_spans_are_filtered_and_sorted(self, store: Store) -> None:
        lease = await leased(store)
        rollout_id = lease.rollout.rollout_id
        names = ["tool.add", "tool.sub", "think"]
        await store.add_many_spans(
            [
                span(
                    lease,
                    n,
                    trace_id=f"t{i % 2}",
                    span_id=f"s{i}",
                    parent_id="p" if i else None,
                    start_time=9.0 - i,
                )
                for i, n in enumerate(names)
            ]
        )

        async def found(**given: Any) -> list[str]:
            return [s.name for s in await store.query_spans(rollout_id, **given)]

        assert await found(name_contains="tool.") == names[:2]
        assert await found(trace_id="t1") == names[1:2] and await found(span_id="s2") == names[2:]
        assert await found(parent_id="p", name="think") == ["think"]
        assert await found(sort_by="start_time") == names[::-1] == await found(sort_order="desc")
        assert await found(sort_by="name", limit=2) == ["think", "tool.add"]
        with pytest.raises(ValueError, match="sort_by"):
            await found(sort_by="size")

    async def test_calls_are_shown_as_spans_in_order(self, store: Store) -> None:
        lease = await leased(store)
        rollout_id = lease.rollout.rollout_id
        await store.add_calls([call(lease, span_id="ab", response_id="r-1", model="m", prompt_tokens=3)])
        wire = span(
            lease,
            "chat m",
            span_id="ab",
            parent_id="root",
            attributes={semconv.LAYER: "wire", semconv.AGENT_NAME: "outer"},
        )
        await store.update_attempt(
            rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED, spans=[wire, reward(lease, 1.0)]
        )
        shown, rewarded = await store.query_spans(rollout_id)
        assert (shown.name, shown.span_id, shown.parent_id) == (semconv.CALL_SPAN, "ab", "root")
        a = shown.attributes
        assert a["gen_ai.prompt.0.content"] == "2+2?" and a["gen_ai.completion.0.content"] == "4"
        assert (a[semconv.REQUEST_MODEL], a[semconv.RESPONSE_ID]) == ("m", "r-1")
        assert (a[semconv.INPUT_TOKENS], a[semconv.OUTPUT_TOKENS]) == (3, 2)
        assert a[semconv.FINISH_REASONS] == ["stop"] and a["agl.tag.agent"] == "solver"
        assert "<3 values>" in repr(shown) and rewarded.name == semconv.REWARD_SPAN
        only = await store.query_spans(rollout_id, name=semconv.CALL_SPAN)
        assert [s.span_id for s in only] == ["ab"]

    async def test_a_step_run_again_replaces_its_fingerprints(self, store: Store) -> None:
        def fingerprint(step: int, rollout: int, policy: str = "p", **fields: Any) -> RolloutFingerprint:
            return RolloutFingerprint(
                run_id="r", step=step, rollout_id=f"ro-{rollout}", policy=policy, **fields
            )

        def report(step: int, policy: str = "p") -> StepReport:
            return StepReport(run_id="r", step=step, policy=policy, policy_version=step)

        await store.add_step(report(1), [fingerprint(1, 5), fingerprint(1, 4)])
        await store.add_step(report(0), [fingerprint(0, 9), fingerprint(0, 2, reward=0.5)])
        await store.add_step(report(0, "q"), [fingerprint(0, 9, "q")])
        for _ in range(2):
            await store.add_step(
                report(0), [fingerprint(0, 1), fingerprint(0, 2, reward=1.0)], request_id="again"
            )
        found = [(s.step, s.policy, s.rollout_id) for s in await store.query_fingerprints("r")]
        assert found == [
            *((0, "q", "ro-9"), (0, "p", "ro-1"), (0, "p", "ro-2")),
            *((1, "p", "ro-5"), (1, "p", "ro-4")),
        ]
        assert await store.query_fingerprints("r", 0, "ro-2") == [fingerprint(0, 2, reward=1.0)]
        assert await store.query_fingerprints("r", rollout_id="ro-9") == [fingerprint(0, 9, "q")]
        assert await store.query_fingerprints("other") == [] == await store.query_fingerprints("r", 7)
        await store.add_step(report(1))
        assert await store.query_fingerprints("r", 1) == []
        with pytest.raises(ValueError, match="fingerprint of ro-1 is of run r, step 0"):
            await store.add_step(report(1), [fingerprint(0, 1)])
        with pytest.raises(ValueError, match="twice"):
            await store.add_step(report(1), [fingerprint(1, 1), fingerprint(1, 1)])
        assert await store.query_fingerprints("r", 1) == []

    async def test_tools_that_ran_are_counted_by_their_spans(self, store: Store) -> None:
        lease = await leased(store)
        name = lease.rollout.rollout_id
        ids: Any = {"rollout_id": name, "attempt_id": lease.attempt.attempt_id}
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}
        named = {"gen_ai.tool.name": "add"}
        other = {"gen_ai.operation.name": "invoke_agent", **named}
        await store.add_many_spans(
            [
                Span(**ids, name="execute_tool add", attributes=tool),
                Span(**ids, name="add", attributes=named, status="error"),
                Span(**ids, name="invoke_agent", attributes=other, status="error"),
                Span(**ids, name="agentlightning.reward", attributes={"agl.reward.value": 1.0}),
            ]
        )
        found = await tool_runs(store, [name, "ro-none"])
        assert found == {name: {lease.attempt.attempt_id: ToolRuns(ran=2, failed=1)}}

    async def test_workers_show_what_they_do(self, store: Store) -> None:
        lease = await leased(store)
        worker = await store.get_worker_by_id("w")
        assert (worker.status, worker.current_attempt_id) == ("busy", lease.attempt.attempt_id)
        await store.heartbeat("w", [lease.attempt.attempt_id], {"cpu": 0.5})
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.update_attempt(*ids, AttemptStatus.SUCCEEDED)
        worker = await store.get_worker_by_id("w")
        assert (worker.status, worker.current_attempt_id, worker.heartbeat_stats) == (
            "idle",
            None,
            {"cpu": 0.5},
        )
        await store.update_worker("v", "unknown")
        assert [w.worker_id for w in await store.query_workers()] == ["v", "w"]
        with pytest.raises(NotFound):
            await store.get_worker_by_id("nobody")
        with pytest.raises(ValueError, match="idle"):
            await store.update_worker("w", "asleep")

    async def test_traces_fingerprints_and_workers_are_paged(self, store: Store) -> None:
        lease = await leased(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.add_calls([call(lease, i, choice=c) for i in (2, 0, 1) for c in (1, 0)])
        await store.add_many_spans([span(lease, f"s{i}", start_time=float(4 - i)) for i in range(4)])
        for attempt_id in ("latest", None):
            spans = await store.query_spans(ids[0], attempt_id)
            assert len(spans) == 10
            assert await flat(pages(store.query_spans, ids[0], attempt_id, size=3)) == spans
            ordered = pages(store.query_spans, ids[0], attempt_id, size=3, sort_by="start_time", name="s2")
            assert [s.name for s in await flat(ordered)] == ["s2"]
        with pytest.raises(NotFound, match="after"):
            await store.query_spans(ids[0], after="x/1")
        for i in range(5):
            report = StepReport(run_id="r0", step=i // 2, policy=f"p/{i % 2}", policy_version=i)
            of = {"run_id": "r0", "step": report.step, "policy": report.policy}
            await store.add_step(report, [RolloutFingerprint(rollout_id=f"ro-{n}", **of) for n in range(3)])
            await store.update_worker(f"w{i}", "idle" if i else "busy")
        for method, args, n in ((store.query_fingerprints, ("r0",), 15), (store.query_workers, (), 6)):
            everything = await method(*args)
            assert len(everything) == n
            assert await flat(pages(method, *args, size=2)) == everything
            assert await flat(pages(method, *args, size=5)) == everything
        for place in ("no/such/place", "1/p/0/ro-x", "1"):
            with pytest.raises((NotFound, ValueError), match="after"):
                await store.query_fingerprints("r0", after=place)
        assert [w.worker_id for w in await store.query_workers(status="busy")] == ["w", "w0"]
        with pytest.raises(ValueError, match="status"):
            await store.query_workers(status="asleep")

    async def test_a_cancelled_rollout_frees_its_worker(self, store: Store) -> None:
        lease = await leased(store)
        await store.update_rollout(lease.rollout.rollout_id, RolloutStatus.CANCELLED)
        worker = await store.get_worker_by_id("w")
        assert worker.current_attempt_id is None


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
