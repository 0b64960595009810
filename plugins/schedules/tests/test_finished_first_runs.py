"""A step trains the groups that are finished first: on the real trainer, runner, gateway and store."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from core.runner.across import Event
from e2e.bad import Line
from e2e.playing import SIZE, TASKS, Broke, Play, break_off, equal, line, recipe, step_of

from agentlightning import LLM, Rollout
from agentlightning.store import SQLiteStore
from agentlightning.train.run_folder import RunError
from agentlightning.types import Attempt, RolloutStatus, UsageError
from agentlightning.types.base import ConfigError
from agl_schedules.finished_first import TOO_OLD


def finished_first(server: ScriptedModelServer, folder: Path, ahead: int, **options: Any) -> Line:
    return line(server, folder, ahead, order="finished", **options)


def trained(made: Line) -> list[list[Any]]:
    """The tasks that each step trained, by their rows."""
    tasks = {r.rollout.rollout_id: r.rollout.input for r in made.records}
    return [sorted({tasks[ledger.rollout_id] for ledger in batch.ledgers}) for batch in made.driver.batches]


def check_bound(made: Line, staleness: int) -> None:
    """No trained token is older than it may be, no call is left out for its age, and the ledgers add up."""
    first = made.driver.reports[0].step
    for step, batch in enumerate(made.driver.batches, first):
        for row in batch.rows:
            ages = {step - v for v, on in zip(row.versions, row.mask, strict=True) if on}
            assert ages and min(ages) >= 0 and max(ages) <= staleness
        assert len(batch.ledgers) == SIZE and all(ledger.sums for ledger in batch.ledgers)
    assert not made.out().keys() - {"other-attempt"}


class OneSlow(Play):
    """A sample of the task that is begun first waits for what a test says; no other does."""

    def __init__(self, made: Line, wait: Callable[[], Awaitable[object]]) -> None:
        self.task: int | None = None
        self.wait = wait
        super().__init__(made, self._act)

    async def run(self, task: int, llm: LLM, rollout: Rollout) -> float:
        self.task = task if self.task is None else self.task
        return await super().run(task, llm, rollout)

    async def _act(self, batch: int, rollout: Rollout) -> float:
        if rollout.input == self.task and rollout.sample == 1:
            await self.wait()
        return float(rollout.sample)


@pytest.mark.slow
async def test_a_slow_rollout_in_ten_holds_no_step(tmp_path: Path) -> None:
    """One task of ten hangs until the very last step is waited for; all others are trained before it."""
    async with ScriptedModelServer() as server:
        made = finished_first(server, tmp_path, 1, steps=5, algorithm=recipe(5))
        go = Event()
        play = OneSlow(made, go.wait)

        async def update(step: int) -> None:
            if step == 3:
                go.set()

        made.driver.update = update
        await made.fit(play, TASKS)
        of_slow = [r.rollout for r in made.records if r.rollout.input == play.task]
    steps = trained(made)
    assert [len(tasks) for tasks in steps] == [2] * 5 and len({t for tasks in steps for t in tasks}) == 10
    assert [of_slow[0].input in tasks for tasks in steps] == [False] * 4 + [True]
    assert {r.attempts for r in of_slow} == {1}
    check_bound(made, 5)
    metrics = [report.metrics for report in made.driver.reports]
    assert [m["async/in_flight"] for m in metrics] == [4, 4, 4, 4, 2]
    assert all(m["async/overtaken"] >= 1 for m in metrics[:4]) and metrics[4]["async/overtaken"] == 0
    assert sum(m["async/started_again"] for m in metrics) == 0
    assert metrics[4]["async/age_max"] == 4 == metrics[4]["staleness_max"]
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_a_rollout_that_would_be_too_old_is_started_again_under_newer_weights(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = finished_first(server, tmp_path, 1, steps=5)
        lives: list[int] = []

        async def first_life_hangs() -> None:
            lives.append(made.driver.version)
            if len(lives) == 1:
                await asyncio.Event().wait()

        play = OneSlow(made, first_life_hangs)
        await made.fit(play, TASKS)
        slowest = [r for r in made.records if r.rollout.input == play.task]
        attempts = [await _attempts(tmp_path, r.rollout.rollout_id) for r in slowest]
    assert lives[0] == 0 and lives[-1] >= 2
    check_bound(made, 1)
    tasks = {task for step in trained(made) for task in step}
    assert len(tasks) == 10 and slowest[0].rollout.input in tasks
    hung = next(of for of in attempts if len(of) == 2 and of[0].status == "unresponsive")
    assert hung[0].reason == TOO_OLD and hung[1].status == "succeeded"
    again = sum(report.metrics["async/started_again"] for report in made.driver.reports)
    assert again == sum(len(of) - 1 for of in attempts) >= 1
    # every attempt's calls are in the ledger of its rollout
    ledgers = {one.rollout_id: one for batch in made.driver.batches for one in batch.ledgers}
    one = ledgers[slowest[1].rollout.rollout_id]
    assert one.sums and one.made == sum(one.left_out.values()) + one.trained
    assert await equal(tmp_path)


async def _attempts(folder: Path, rollout_id: str) -> list[Attempt]:
    store = SQLiteStore(folder / "r" / "store.sqlite")
    try:
        return await store.query_attempts(rollout_id)
    finally:
        await store.close()


@pytest.mark.slow
async def test_a_killed_run_goes_on_with_the_groups_that_were_in_flight(tmp_path: Path) -> None:
    """None is trained twice, none is lost, whatever the checkpoint is behind."""
    async with ScriptedModelServer() as server:
        made = finished_first(server, tmp_path, 2, steps=6)
        state: list[str] = []

        async def act(batch: int, rollout: Rollout) -> float:
            if batch == 0 and rollout.sample == 1 and made.driver.version < 2:
                await held.wait()
            return float(rollout.sample)

        held, play = Event(), Play(made, act)

        async def update(step: int) -> None:
            if step == 2:  # the checkpoint of two steps
                state.append((tmp_path / "r" / "finished.json").read_text())
            if step == 4:
                raise Broke

        made.driver.update = update
        await break_off(made, play, TASKS)
        before = trained(made)
        (tmp_path / "r" / "finished.json").write_text(state[0])
        again = finished_first(server, tmp_path, 1, algorithm=recipe(2), steps=6, resume=True)
        await again.fit(Play(again), TASKS)
    assert [r.step for r in again.driver.reports] == [2, 3, 4, 5]
    found = [*before[:2], *trained(again)]
    assert Counter(Counter(t for tasks in found for t in tasks).values()) == {1: 12}
    assert {batch for batch in map(step_of, (r.rollout for r in again.records))} == set(range(6))
    check_bound(again, 2)
    assert {r.rollout.status for r in again.records} == {RolloutStatus.SUCCEEDED}
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_a_run_goes_on_in_the_order_that_it_began_with(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = finished_first(server, tmp_path, 1, steps=1)
        play = Play(made)
        await made.fit(play, TASKS)
        with pytest.raises(RunError, match="order was 'finished' when it began and is None"):
            await line(server, tmp_path, 1, steps=2, resume=True).fit(play, TASKS)


@pytest.mark.slow
async def test_what_does_not_work_with_it_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        with pytest.raises(ConfigError, match=r"order = 'finished' without training\.async_steps"):
            await finished_first(server, tmp_path, 0).fit(None, TASKS)
        with pytest.raises(ConfigError, match=r"order = 'finished' with training\.quorum: .*drop quorum"):
            await finished_first(server, tmp_path, 1, quorum={"k": 1}).fit(None, TASKS)
        with pytest.raises(UsageError, match=r"async_steps = 1: which version .* deterministic mode"):
            finished_first(server, tmp_path, 1, options={"deterministic": True})
        with pytest.raises(ConfigError, match=r"async_steps = 2 with recipe\.max_staleness = 1"):
            await finished_first(server, tmp_path, 2, algorithm=recipe(1)).fit(None, TASKS)


@pytest.mark.slow
async def test_groups_without_a_spread_are_replaced_here_too(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = finished_first(
            server, tmp_path, 1, steps=2, dynamic_sampling=2,
            algorithm=recipe(1, filter_zero_std_groups=True),
        )  # fmt: skip

        async def act(batch: int, rollout: Rollout) -> float:
            extra = "+" in (rollout.group_id or "")
            return float(rollout.sample if extra else 1)

        await made.fit(Play(made, act), TASKS)
    for report in made.driver.reports:
        assert report.metrics["dynamic_sampling/batches"] == 1
        assert report.metrics["dynamic_sampling/groups"] == 4
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_a_curriculum_chooses_the_tasks_and_keeps_its_choices_while_they_are_in_flight(
    tmp_path: Path,
) -> None:
    async with ScriptedModelServer() as server:
        made = finished_first(server, tmp_path, 1, steps=4, algorithm=recipe(4), curriculum="solve_rate")
        held = Event()
        play = OneSlow(made, held.wait)

        async def update(step: int) -> None:
            if step == 2:
                kept = json.loads((tmp_path / "r" / "finished.json").read_text())[1]
                assert kept["groups"]["open"][0] // 2 == min(map(int, kept["curriculum"]["drawn"])) == 0
                raise Broke

        made.driver.update = update
        await break_off(made, play, TASKS)
        again = finished_first(
            server, tmp_path, 1, steps=4, algorithm=recipe(4), curriculum="solve_rate", resume=True
        )
        await again.fit(Play(again), TASKS)
    batches = [*made.driver.batches[:2], *again.driver.batches]
    found = [ledger.rollout_id for batch in batches for ledger in batch.ledgers]
    assert len(found) == len(set(found)) == 4 * SIZE and len(again.driver.reports) == 2
    check_bound(again, 4)
    assert await equal(tmp_path)
