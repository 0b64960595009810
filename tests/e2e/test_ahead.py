"""Rollouts of later steps run on while a step is trained: on the real trainer, runner, gateway and store."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from core.runner.across import Event
from e2e.bad import Line
from e2e.playing import SIZE, TASKS, Broke, Play, break_off, equal, line, plan, recipe, step_of

from agentlightning import Rollout
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.algorithms.queue import ENDED, RunEnded
from agentlightning.specs import Job
from agentlightning.store import SQLiteStore
from agentlightning.types import RolloutStatus, UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.failure import failure_kind


def ages(made: Line) -> list[set[int]]:
    """How many versions old the trained tokens of each step were."""
    return [
        {step - v for row in batch.rows for v, on in zip(row.versions, row.mask, strict=True) if on}
        for step, batch in enumerate(made.driver.batches)
    ]


@pytest.mark.slow
async def test_later_steps_are_rolled_out_while_one_is_trained(tmp_path: Path) -> None:
    plans = []
    for ahead in (0, 1, 2):
        async with ScriptedModelServer() as server:
            made = line(server, tmp_path / str(ahead), ahead)
            play = Play(made)

            async def update(step: int, play: Play = play, ahead: int = ahead) -> None:
                for later in range(step + 1, min(step + ahead, 3) + 1):
                    await play.until(later)  # all of it ends during this very update
                assert not any(play.ended[later] for later in range(step + ahead + 1, 4))

            made.driver.update = update
            await made.fit(play, TASKS)
        plans.append(plan(made))
        assert [row.metadata["staleness"] for b in made.driver.batches for row in b.rows] == [
            min(step, ahead) for step in range(4) for _ in range(SIZE)
        ]
        assert ages(made) == [{min(step, ahead)} for step in range(4)]
        assert not made.out()
        for step, report in enumerate(made.driver.reports):
            assert report.metrics["staleness_mean"] == report.metrics["staleness_max"] == min(step, ahead)
            done = {"async/started": SIZE * (step > 0), "async/ended": SIZE * (step > 0)}
            assert {k: v for k, v in report.metrics.items() if k.startswith("async/")} == (
                done if ahead else {}
            )
        assert {s: v for s, v in play.versions.items()} == {s: {max(0, s - ahead)} for s in range(4)}
    assert plans[0] == plans[1] == plans[2] and len(plans[0]) == 4 * SIZE


async def test_a_run_with_fresh_and_stale_tokens_says_their_mean_age(tmp_path: Path) -> None:
    """Half of step 1 is rolled out during the update before it, half after."""
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 1, steps=2)
        updated = Event()

        async def act(step: int, rollout: Rollout) -> float:
            if step == 1 and rollout.sample == 1 and made.driver.version == 0:
                await updated.wait()
                raise RuntimeError("again")
            return float(rollout.sample)

        made.trainer.config.training.failure.update(
            {"agent-raised": made.trainer.config.training.failure["cancelled"]}
        )  # tried again
        play = Play(made, act)

        async def update(step: int) -> None:
            if step == 0:
                await play.until(1, 2)
            asyncio.get_running_loop().call_soon(updated.set)

        made.driver.update = update
        await made.fit(play, TASKS)
    last = made.driver.reports[1].metrics
    assert (last["staleness_mean"], last["staleness_max"], last["retried/agent-raised"]) == (0.5, 1, 2)
    assert (last["async/started"], last["async/ended"]) == (4, 2)


@pytest.mark.slow
async def test_calls_that_a_recipe_would_leave_out_are_refused_beforehand(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        with pytest.raises(
            ConfigError, match=r"async_steps = 2 with recipe\.max_staleness = 1: .*importance_cap"
        ):
            await line(server, tmp_path, 2, algorithm=recipe(1)).fit(None, TASKS)
        with pytest.raises(
            UsageError, match=r"async_steps = 1: .* timing, which deterministic mode excludes"
        ):
            line(server, tmp_path, 1, options={"deterministic": True})


@pytest.mark.slow
async def test_evaluations_in_between_ask_the_present_version(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 1, evaluate_every=1)
        play = Play(made)
        await made.fit(play, TASKS, [100, 101])
        names = [row["evaluation"] for row in (r.rollout.metadata for r in made.records) if row]
    assert Counter(names) == {
        n: 2 for n in ("before", "before-sampled", "step-1", "step-2", "step-3", "after", "after-sampled")
    }
    by_name = {
        r.rollout.metadata["evaluation"]: {c.policy_version for c in r.calls}
        for r in made.records
        if r.rollout.metadata
    }
    assert [by_name[n] for n in ("before", "step-1", "step-2", "step-3", "after")] == [
        {0},
        {1},
        {2},
        {3},
        {4},
    ]
    assert len(made.driver.batches) == 4 and max(max(a) for a in ages(made)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("error", [Broke, asyncio.CancelledError])
async def test_a_run_that_ends_early_ends_its_rollouts_and_goes_on_with_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 1, steps=5)

        async def act(step: int, rollout: Rollout) -> float:
            if step == 3 and rollout.sample == 1:
                await asyncio.Event().wait()  # until it is stopped
            return float(rollout.sample)

        play = Play(made, act)

        async def update(step: int) -> None:
            if step == 2:
                await play.until(3, 2)
                raise error

        made.driver.update = update
        with pytest.raises(error):
            await made.fit(play, TASKS)
        by_step = defaultdict(list)
        for record in made.records:
            by_step[step_of(record.rollout)].append(record.rollout)
        assert {s: {r.status for r in by_step[s]} for s in range(3)} == {
            s: {RolloutStatus.SUCCEEDED} for s in range(3)
        }
        assert Counter(r.status for r in by_step[3]) == {"succeeded": 2, "cancelled": 2}
        assert {r.reason for r in by_step[3] if r.status == RolloutStatus.CANCELLED} == {ENDED}
        assert failure_kind(ENDED) == "cancelled" and 4 not in by_step
        assert "2 rollouts were under way and are cancelled" in capsys.readouterr().err
        # gone on with, what was finished ahead is not trained: it is rolled out again, by what is served now
        again = line(server, tmp_path, 1, steps=5, resume=True)
        fresh = Play(again)
        await again.fit(fresh, TASKS)
    assert [r.step for r in again.driver.reports] == [2, 3, 4]
    assert min(v for seen in fresh.versions.values() for v in seen) == 2
    attempts = {s: {r.rollout.attempts for r in again.records if step_of(r.rollout) == s} for s in range(5)}
    assert attempts == {0: {1}, 1: {1}, 2: {2}, 3: {2}, 4: {1}}
    trained = {row.rollout_id for batch in again.driver.batches for row in batch.rows}
    assert all(r.calls[-1].policy_version >= 2 for r in again.records if r.rollout.rollout_id in trained)
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_a_killed_run_rolls_out_again_whatever_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 2, steps=6)
        play = Play(made)

        async def update(step: int) -> None:
            if step == 3:
                await play.until(5)
                raise Broke

        made.driver.update = update
        await break_off(made, play, TASKS)
        before = plan(made)
        assert len(before) == 6 * SIZE
        (tmp_path / "r" / "finished.json").write_text("[1, {}]")  # the last checkpoint is older than that
        again = line(server, tmp_path, 1, algorithm=recipe(2), steps=6, resume=True)
        fresh = Play(again)
        await again.fit(fresh, TASKS)
    assert plan(again) == before
    assert [r.step for r in again.driver.reports] == [1, 2, 3, 4, 5]
    assert all(max(0, s - 1) <= min(seen) for s, seen in fresh.versions.items())  # none before its time
    assert {r.rollout.attempts for r in again.records if step_of(r.rollout) > 0} == {2}
    assert sum(r.metrics["retried/succeeded"] for r in again.driver.reports) == 5 * SIZE


@pytest.mark.slow
async def test_a_step_that_a_driver_still_asks_for_when_the_run_ends_is_not_made(tmp_path: Path) -> None:
    """As a driver with a child does: the question is a task of its own, which nobody cancels."""
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 0, steps=2)
        asked: list[asyncio.Task[Any]] = []

        async def act(step: int, rollout: Rollout) -> float:
            if rollout.sample == 1:
                await asyncio.Event().wait()
            return float(rollout.sample)

        play = Play(made, act)

        async def run(job: Job) -> None:
            asked.append(asyncio.create_task(job.collect(0)))
            await play.until(0, 2)
            raise Broke

        async def close() -> None:
            await asyncio.wait(asked)  # it ends by itself, while the store is open

        made.driver.run, made.driver.close = run, close  # type: ignore[method-assign]
        with pytest.raises(Broke):
            await made.fit(play, TASKS)
    with pytest.raises(RunEnded, match="no step is made"):
        asked[0].result()
    assert Counter(r.rollout.status for r in made.records) == {"succeeded": 2, "cancelled": 2}


@pytest.mark.slow
async def test_what_a_killed_run_left_in_the_queue_runs_once_when_it_goes_on(tmp_path: Path) -> None:
    """Runners are there before the step that queues it again: none of it may be taken until then."""
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 1, steps=2)

        async def update(step: int) -> None:
            raise Broke

        made.driver.update = update
        await break_off(made, Play(made), TASKS, [100])
        store = SQLiteStore(tmp_path / "r" / "store.sqlite")
        left = [r for r in await store.query_rollouts() if step_of(r) == 1]
        await store.requeue_rollouts([r.rollout_id for r in left], reason="killed")
        await store.close()
        before = {r.rollout_id: r.attempts for r in left}
        (tmp_path / "r" / "finished.json").write_text("[1, {}]")
        # an evaluation comes first, behind what is in the queue
        again = line(server, tmp_path, 1, steps=2, resume=True, evaluate_every=1, concurrency=1)
        await again.fit(Play(again), TASKS, [100])
    after = {r.rollout.rollout_id: r.rollout.attempts for r in again.records if step_of(r.rollout) == 1}
    assert len(after) == SIZE and after == {i: n + 1 for i, n in before.items()}


@pytest.mark.slow
async def test_a_quorum_counts_from_when_its_step_is_waited_for(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 1, steps=3, quorum={"k": 1, "deadline": 0.05})

        slow, home = asyncio.Semaphore(0), asyncio.get_running_loop()

        async def act(step: int, rollout: Rollout) -> float:
            if step == 1 and rollout.sample == 1:
                home.call_soon_threadsafe(slow.release)
                await asyncio.Event().wait()
            return float(rollout.sample)

        play = Play(made, act)

        async def update(step: int) -> None:
            if step == 0:
                await play.until(1, 2)
                for _ in range(2):
                    await asyncio.wait_for(slow.acquire(), 300)
                await asyncio.sleep(0.1)  # longer than the deadline, and nobody is stopped: nobody waits yet
                rollouts = await rollouts_of(made, 1)
                assert Counter(r.status for r in rollouts) == {"succeeded": 2, "running": 2}

        made.driver.update = update
        await made.fit(play, TASKS)
    metrics = [r.metrics for r in made.driver.reports]
    assert metrics[1]["quorum/stragglers"] == 2 == metrics[1]["quorum/short_groups"]
    assert metrics[1]["failed/straggler"] == 2 and metrics[1]["quorum/waited_seconds"] >= 0.05
    assert {r.rollout.status.final for r in made.records} == {True}


async def rollouts_of(made: Line, step: int) -> list[Rollout]:
    """As the run's store has them."""
    return [r for r in await made.context.store.query_rollouts(run_id="r") if step_of(r) == step]


@pytest.mark.slow
async def test_an_agent_that_earns_nothing_still_ends_the_run(tmp_path: Path) -> None:
    async def act(step: int, rollout: Rollout) -> float:
        raise RuntimeError("broken")

    async with ScriptedModelServer() as server:
        made = line(
            server, tmp_path, 1, algorithm=recipe(1, filter_zero_std_groups=True), dynamic_sampling=1, steps=9
        )
        with pytest.raises(NothingRewarded, match=r"steps 1 to 3: not one rollout got a reward"):
            await made.fit(Play(made, act), TASKS)
    assert {r.rollout.status.final for r in made.records} == {True}
