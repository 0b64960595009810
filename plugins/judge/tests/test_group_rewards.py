"""Rewards that see the group, in runs: who is judged, what is stored, and what others read of it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.credit.rollout_reward import rollout_reward
from agl_audit.run import open_run
from agl_audit.verification.verify import verify
from agl_judge.group import Group, group_reward
from agl_judge.store import GRADED
from plugins.judge.tests.conftest import World, asked, plugins, say

TASKS = ["a", "b", "c", "d"]


@group_reward
def longest(group: Group) -> list[float]:
    """The rollouts that say most."""
    return [float(len(one.answer)) for one in group.rollouts]


async def rollouts_of(store: Any, mode: str = "train") -> list[Any]:
    return [one for one in await store.query_rollouts(run_id="r") if one.mode == mode]


async def test_a_function_of_the_group_gives_the_rewards_that_everybody_reads(world: World) -> None:
    summary = await world.trainer(group_reward=longest).afit(say, TASKS)
    assert summary["totals"]["tokens_trained"] > 0
    assert summary["group_reward"] == {
        "by": "longest",
        "graded": 16,
        "groups": 4,
        "not_judged": 0,
        "replaced": 0,
    }
    async with world.stored() as store:
        found = await rollouts_of(store)
        records = await store.records([one.rollout_id for one in found])
        for record in records:
            assert record.rollout.metadata[GRADED] == {
                "attempt": record.attempt.attempt_id,
                "by": "longest",
            }
            (reward,) = record.rewards
            said = (record.calls[-1].response or {})["content"]
            assert reward.returned and reward.value == len(said or "")
    async with open_run(str(world.folder / "runs" / "r"), plugins=plugins()) as run:
        checked = await verify(run)
    assert checked.equal, [one.text for one in checked.differences]


@pytest.mark.slow
async def test_a_group_is_seen_whole_and_a_failed_rollout_is_not_judged_and_no_zero(world: World) -> None:
    seen: list[Group] = []

    @group_reward
    async def noted(group: Group) -> dict[str, float]:
        seen.append(group)
        return {one.rollout_id: float(n) for n, one in enumerate(group.rollouts)}

    @agl.rollout
    async def failing(task: Any, llm: agl.LLM, rollout: agl.Rollout) -> None:
        await asked(llm, str(task))
        if rollout.sample == 1:
            raise ValueError("the tool is broken")

    summary = await world.trainer(group_reward=noted, steps=1).afit(failing, TASKS)
    assert summary["group_reward"] == {
        "by": "noted",
        "graded": 6,
        "groups": 2,
        "not_judged": 2,
        "replaced": 0,
    }
    for group in seen:
        assert len(group.rollouts) == 3 and list(group.missing.values()) == ["agent-raised"]
        first = group.rollouts[0]
        assert first.messages[0] == {"role": "user", "content": group.task}
        assert first.messages[-1]["content"] == first.answer and first.reward is None
    async with world.stored() as store:
        records = await store.records([one.rollout_id for one in await rollouts_of(store)])
    failed = [one for one in records if one.rollout.status == "failed"]
    assert len(failed) == 2 and not any(one.rewards for one in failed)


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        (lambda group: [1.0], "it has 1 rewards for 4 rollouts"),
        (lambda group: {"ro-x": 1.0}, "which is no rollout of the group"),
        (lambda group: [1.0, 2.0, float("nan"), 1.0], "not a finite number"),
        (lambda group: ["95", 1, 2, 3], "not a finite number"),
        (lambda group: [True, 1, 2, 3], "the reward of"),
        (lambda group: "good", "it is str"),
        (lambda group: 1 / 0, "ZeroDivisionError"),
        (lambda group: sys.exit(3), "SystemExit: 3"),
        (lambda group: group.ask("nobody", [], str), "serves no policy 'nobody'"),
    ],
)
@pytest.mark.slow
async def test_what_is_no_reward_is_missing_with_its_reason(world: World, gives: Any, why: str) -> None:
    given = world.trainer(group_reward=gives, steps=1, batch_size=1, no_signal_steps=5)
    summary = await given.afit(say, TASKS)
    assert summary["totals"]["tokens_trained"] == 0 and "graded" not in summary["group_reward"]
    async with world.stored() as store:
        found = await rollouts_of(store)
        assert all(why in one.metadata[GRADED]["missing"] for one in found)
        records = await store.records([one.rollout_id for one in found])
    assert all(record.rewards[0].value != record.rewards[0].value for record in records)  # missing, never 0
    assert all(why in rollout_reward(record).reason for record in records)


@pytest.mark.slow
async def test_none_is_missing_and_the_others_are_trained_without_it(world: World) -> None:
    def some(group: Group) -> list[float | None]:
        return [None, *[float(n) for n in range(1, len(group.rollouts))]]

    reports: list[Any] = []

    class Watch:
        @agl.hookimpl
        def agl_policy_updated(self, report: agl.StepReport) -> None:
            reports.append(report)

    summary = await world.trainer(Watch(), group_reward=some, steps=1).afit(say, TASKS)
    assert summary["group_reward"]["missing/none-given"] == 2 and summary["group_reward"]["graded"] == 6
    (report,) = reports
    assert report.metrics["rollouts_no_reward"] == 2 and report.metrics["group_reward/graded"] == 6
    assert report.metrics["reward_mean"] == 2.0  # of 1, 2 and 3: what is missing is in no mean


@pytest.mark.slow
async def test_what_the_agent_says_of_itself_does_not_count_beside_it(world: World) -> None:
    @agl.rollout
    async def boasting(task: Any, llm: agl.LLM) -> float:
        await asked(llm, str(task))
        agl.emit_reward(99.0, name="group_reward")
        return 1000.0

    summary = await world.trainer(group_reward=longest, steps=1).afit(boasting, TASKS)
    assert summary["group_reward"]["replaced"] == 8
    async with world.stored() as store:
        records = await store.records([one.rollout_id for one in await rollouts_of(store)])
    from agentlightning.credit.rollout_reward import rollout_reward

    assert all((rollout_reward(one).value or 0.0) < 100 for one in records)


@pytest.mark.slow
async def test_an_evaluation_counts_what_means_the_same_in_every_group(world: World) -> None:
    relative = await world.trainer(group_reward=longest, steps=1).afit(say, TASKS, ["x", "y"])
    assert relative["reward_before"] is not None  # the agent's own reward
    async with world.stored() as store:
        assert not any(GRADED in one.metadata for one in await rollouts_of(store, "val"))
    absolute = group_reward(lambda group: [7.0] * len(group.rollouts), relative=False)
    summary = await world.trainer(group_reward=absolute, steps=1, run="s").afit(say, TASKS, ["x", "y"])
    assert summary["reward_before"] == summary["reward_after"] == 7.0
