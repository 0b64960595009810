"""The reward of a rollout is one number, whoever reads it: a run that is awkward to read, on real parts.

Some rollouts have rewards of their calls alone; some emitted a reward and then failed; some had no call; the
evaluation has several rollouts of a task, some of which fail.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from e2e.bad import Line, ask

import agentlightning as agl
from agentlightning import GRPO, LLM, Rollout
from agentlightning.store import SQLiteStore
from agentlightning.types import Evaluation
from agl_audit.comparison import compare
from agl_audit.explanation.explain import explain
from agl_audit.history.rescoring.function import RescoreFunction
from agl_audit.history.rescoring.rescore import rescore
from agl_audit.locations import RunLocation
from agl_audit.rollout_list import list_rollouts
from agl_audit.run import OpenRun, run_in
from agl_audit.targets import find_target
from agl_audit.verification.verify import verify
from agl_audit.watching import Watcher
from agl_dashboard.data.lines import FileLines, LineSource, StoreLines

TASKS = ["by-call", "raises", "no-call", "plain"]
TABLES: dict[str, dict[str, Any]] = {
    "failures are left out": {},
    "failures have rewards": {"agent-raised": -1.0, "no-call": -0.25},
}
EARNED = {"by-call": 0.5, "plain": 0.75}
"""Task → reward of its rollouts that do not fail."""


class Awkward:
    """An agent whose task says how it ends."""

    async def run(self, task: str, llm: LLM, rollout: Rollout) -> float | None:
        if task == "no-call":
            return 9.0
        first = await ask(llm, task)
        if task == "by-call":
            second = await ask(llm, "again")
            agl.emit_reward(0.25, call=first)
            agl.emit_reward(0.75, call=second)
            return None
        if task == "raises" or (rollout.mode == "val" and rollout.sample % 2):
            agl.emit_reward(9.0)
            raise ValueError("no such [tool]")
        return EARNED[task]


def line(server: ScriptedModelServer, folder: Path, failure: Mapping[str, Any], **more: Any) -> Line:
    recipe = GRPO(group_size=2, credit="per_call")
    given = {"algorithm": recipe, "steps": 2, "batch_size": 4, "evaluate_sampled": False, **more}
    return Line(server, folder, failure=failure, **given)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[OpenRun]:
    store = SQLiteStore(folder / "r" / "store.sqlite")
    try:
        yield await run_in(store, RunLocation(str(folder / "r" / "store.sqlite"), folder / "r", "r"))
    finally:
        await store.close()


def known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
async def test_all_readers_have_the_same_number(tmp_path: Path, table: str) -> None:
    failure = TABLES[table]
    async with ScriptedModelServer() as server:
        await line(server, tmp_path, failure).fit(Awkward(), TASKS, TASKS)
    async with opened(tmp_path) as run:
        lines = (await list_rollouts(run, limit=1000)).lines
        by_batch: dict[str, list[float | None]] = defaultdict(list)
        wanted = {**EARNED, "raises": failure.get("agent-raised"), "no-call": failure.get("no-call")}
        tasks = {one.rollout_id: one for one in await run.store.query_rollouts(limit=1000)}
        for one in lines:
            mode, task = one.mode, tasks[one.rollout].input
            # an evaluation lets an agent do without the model; one that has a sample in two raises
            reward = 9.0 if (mode, task) == ("val", "no-call") else wanted[task]
            assert one.reward == reward, (mode, task)
            by_batch[one.batch].append(one.reward)
        # training: metrics, `agl runs` and `agl top`, the group of `agl explain`
        reports = await run.store.query_steps(run.run_id)
        assert len(reports) == 2
        for report in reports:
            values = known(by_batch[f"train/{report.step}"])
            assert report.metrics["reward_mean"] == pytest.approx(fmean(values))
            assert report.metrics["reward_count"] == len(values)
        look = await Watcher(str(tmp_path / "r")).look()
        assert look.detail is not None
        assert look.detail.rewards == [report.metrics["reward_mean"] for report in reports]
        for one in lines[:8]:
            target = await find_target(run.store, one.rollout)
            assert target is not None
            group = {part["rollout"]: part["reward"] for part in (await explain(run, target))["group"]}
            assert group.get(one.rollout, one.reward) == one.reward
        # evaluations, and their comparison
        entries = run.info["evaluations"]
        for batch, entry in entries.items():
            assert entry["evaluation"]["reward"] == pytest.approx(fmean(known(by_batch[batch])))
            assert sorted(known(entry["evaluation"]["rewards"])) == sorted(known(by_batch[batch]))
        same = await compare(run, run)
        assert {one.name: one.difference for one in same.evaluations} == {"before": 0.0, "after": 0.0}
        assert all(one.tasks == len(known(by_batch["eval/after/1"])) for one in same.evaluations)
        # the dashboard, by file and by any store
        sources: list[LineSource] = [FileLines(tmp_path / "r" / "store.sqlite"), StoreLines(run.store)]
        for source in sources:
            shown = [part async for page in source.lines([one.rollout for one in lines]) for part in page]
            assert {part.rollout: part.reward for part in shown} == {one.rollout: one.reward for one in lines}
            await source.close()
        # `agl rescore` and `agl verify`
        scored = await rescore(run, RescoreFunction("e2e.test_one_reward:half"), dry_run=True)
        not_failed = [one for one in lines if one.failure is None or one.failure == "no-call"]
        assert scored.before == pytest.approx(known([one.reward for one in not_failed]))
        assert (await verify(run)).equal
        # what is counted is found
        failed = (await list_rollouts(run, failed=True, limit=1000)).lines
        counted = sum(r.metrics["rollouts_failed"] + r.metrics["rollouts_no_reward"] for r in reports)
        counted += sum(entry["evaluation"]["failed"] for entry in entries.values())
        assert len(failed) == counted > 0 and {one.failure for one in failed} == {"agent-raised", "no-call"}


def half(result: Any) -> float:
    """A reward function: every rollout has earned a half."""
    return 0.5


@pytest.mark.slow
async def test_several_samples_of_a_task_verify_and_are_paired(tmp_path: Path) -> None:
    """What ``agl eval --samples`` does, with failures among the samples."""
    for name in ("one", "two"):
        async with ScriptedModelServer() as server:
            made = line(server, tmp_path / name, {}, steps=0)
            async with made.trainer.session(Awkward(), (), TASKS) as context:
                found = await context.evaluate(["by-call", "plain"], name="eval", greedy=False, samples=4)
    assert found.rewards == [0.5] * 4 + [0.75, None] * 2 and found.reward == pytest.approx(3.5 / 6)
    assert (found.failed, found.left_out, found.metrics["pass@1"]) == (2, 2, 0.0)
    assert found.failures_text() == "2 of 8 failed, left out: agent-raised: ValueError: no such [tool]"
    async with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        result = await verify(one)
        assert result.equal, [difference.text for difference in result.differences]
        [pair] = (await compare(one, two)).evaluations
    assert (pair.difference, pair.tasks, pair.ci) == (0.0, 2, None)
    assert pair.interval == "all 2 tasks have the mean 0"


@pytest.mark.slow
async def test_compare_has_the_difference_of_the_rewards_that_it_shows(tmp_path: Path) -> None:
    """Rewards by call alone once counted as 0 where runs were paired."""
    for name, reward in (("one", 0.5), ("two", 0.75)):

        async def by_call(task: int, llm: LLM, earned: float = reward) -> None:
            agl.emit_reward(earned + task / 100, call=await ask(llm, "hello"))

        async with ScriptedModelServer() as server:
            await Line(server, tmp_path / name, steps=0).fit(agl.rollout(by_call), [0, 1], [0, 1, 2])
    async with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        found = {pair.name: pair for pair in (await compare(one, two)).evaluations}
    shown = [found["after"].first, found["after"].second]
    assert [one.reward for one in shown if one] == pytest.approx([0.51, 0.76])
    assert found["after"].difference == pytest.approx(0.25) and found["after"].better == 3


@pytest.mark.slow
async def test_the_terminal_says_how_many_failed_and_why(tmp_path: Path, capsys: Any) -> None:
    async with ScriptedModelServer() as server:
        await line(server, tmp_path, {}, trackers=["console"]).fit(Awkward(), TASKS, TASKS)
    said = capsys.readouterr().err
    assert "reward 0.625 (4 of 8 failed, left out: " in said.replace("\n", " ")
    assert "(1 of 4 failed, left out: agent-raised: ValueError: no such [tool])" in said.replace("\n", " ")


def test_an_evaluation_says_what_kind_its_interval_is() -> None:
    known = Evaluation(name="x", n=2, reward=0.5, ci=(0.25, 0.75), interval="Student's t")
    assert known.interval_text() == "0.250 – 0.750 (Student's t)"
    assert Evaluation(name="x", n=1, reward=math.nan, interval="no reward").interval_text() == "– (no reward)"
