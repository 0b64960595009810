"""Steps that go on rolling out until enough groups have a spread: on the real trainer, runner and store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from agl_testing import ScriptedModelServer
from e2e.playing import SIZE, TASKS, Broke, Play, equal, line, plan, step_of

from agentlightning import GRPO, Rollout


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that are told to stop do so at once, instead of waiting for work a little longer."""
    monkeypatch.setattr("agentlightning.runner.runner.POLL", 0.02)


def spread(*tasks: int) -> Callable[[int, Rollout], Awaitable[float]]:
    """Rewards that differ within the groups of these tasks, and in no other."""

    async def act(step: int, rollout: Rollout) -> float:
        return float(rollout.sample) if rollout.input in tasks else 1.0

    return act


DROPS = GRPO(group_size=2, filter_zero_std_groups=True)


@pytest.mark.slow
async def test_a_step_is_refilled_until_enough_groups_have_a_spread(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 0, algorithm=DROPS, dynamic_sampling=3, steps=3)
        plain = line(server, tmp_path / "plain", 0, algorithm=DROPS, steps=3)
        await plain.fit(Play(plain, spread(*TASKS[::2])), TASKS)
        await made.fit(Play(made, spread(*TASKS[::2])), TASKS)
    asked: dict[tuple[int, int], list[int]] = defaultdict(list)
    for record in made.records:
        name = (record.rollout.group_id or "").split("/")[2]
        step, _, number = name.partition("+")
        asked[int(step), int(number or 0)].append(record.rollout.input)
    for step, (batch, report) in enumerate(zip(made.driver.batches, made.driver.reports, strict=True)):
        m, used = report.metrics, [asked[s, n] for s, n in asked if s == step]
        groups = [task for tasks in used for task in tasks[::2]]
        good = [task for task in groups if task % 2 == 0]
        assert (m["dynamic_sampling/batches"], m["dynamic_sampling/groups"]) == (len(used) - 1, len(groups))
        assert (m["dynamic_sampling/without_spread"], m["dynamic_sampling/short"]) == (
            len(groups) - len(good),
            max(0, 2 - len(good)),
        )
        assert len(good) >= 2 or len(used) == 4
        assert sum(task % 2 == 0 for tasks in used[:-1] for task in tasks[::2]) < 2  # and not one batch more
        assert len(set(groups)) == len(groups)  # no task twice in a step
        assert len({row.rollout_id for row in batch.rows}) == 2 * len(good)
        assert m["rollouts"] == 2 * len(groups) and all(ledger.sums for ledger in batch.ledgers)
    assert any(r.metrics["dynamic_sampling/batches"] for r in made.driver.reports)
    # what a step has anyway is what it has without refill
    assert plan(plain).items() <= plan(made).items() and len(plan(plain)) == 3 * SIZE
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_a_step_that_cannot_be_filled_says_so(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 0, algorithm=DROPS, dynamic_sampling=2, steps=1)
        await made.fit(Play(made, spread()), TASKS[:3])
    assert {k: v for k, v in made.driver.reports[0].metrics.items() if k.startswith("dynamic_sampling/")} == {
        "dynamic_sampling/batches": 2, "dynamic_sampling/groups": 6,
        "dynamic_sampling/without_spread": 6, "dynamic_sampling/short": 2,
    }  # fmt: skip
    assert made.out() == {"zero-std": 12} and not made.driver.batches[0].rows


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_resumed_step_asks_the_same_tasks_also_where_others_come_out_otherwise(
    tmp_path: Path, ahead: int
) -> None:
    """A step between needs another number of batches than before: later steps do not move."""
    recipe = GRPO(group_size=2, filter_zero_std_groups=True, max_staleness=ahead)
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, ahead, algorithm=recipe, dynamic_sampling=2, steps=4)

        async def update(step: int) -> None:
            if step == 2:
                raise Broke

        made.driver.update = update
        with pytest.raises(Broke):
            await made.fit(Play(made, spread()), TASKS)  # every step takes all it can
        before = plan(made)
        (tmp_path / "r" / "finished.json").write_text("[1, {}]")
        again = line(server, tmp_path, ahead, algorithm=recipe, dynamic_sampling=2, steps=4, resume=True)
        await again.fit(Play(again, spread(*TASKS)), TASKS)  # none needs more than it has
    assert [r.metrics["dynamic_sampling/batches"] for r in again.driver.reports] == [0, 0, 0]
    after = plan(again)
    assert before.items() <= after.items()
    assert {step_of(r.rollout) for r in again.records if r.rollout.rollout_id not in before} == (
        {3} if ahead == 0 else set()
    )
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_a_quorum_is_kept_in_every_batch(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(
            server,
            tmp_path,
            0,
            algorithm=DROPS,
            dynamic_sampling=1,
            steps=1,
            quorum={"hedge": 1},
            batch_size=1,
        )
        await made.fit(Play(made, spread()), TASKS)
    metrics = made.driver.reports[0].metrics
    assert metrics["dynamic_sampling/groups"] == 2 == metrics["quorum/hedged"] and metrics["rollouts"] == 6
