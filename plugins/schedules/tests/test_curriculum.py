"""A curriculum chooses the tasks of real runs: what it asks, how it resumes, how a policy learns by it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from agl_testing import ScriptedModelServer
from e2e.playing import TASKS, Broke, Play, break_off, equal, line, plan, step_of
from e2e.test_line import Watch, trainer
from openai import AsyncOpenAI

import agl_local.plugin
import agl_schedules.plugin
from agentlightning import GRPO, LLM, Rollout, hookimpl
from agentlightning.plugins.manager import PluginError, build
from agentlightning.types import UsageError
from agentlightning.types.base import ConfigError
from agl_schedules import CurriculumSpec
from plugins.local.tests.driver_fixtures import saved_policy

HARD = {"solve_rate": {"low": 0.2, "high": 0.8, "explore": 0.5, "window": 1}}


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that are told to stop do so at once, instead of waiting for work a little longer."""
    monkeypatch.setattr("agentlightning.runner.runner.POLL", 0.02)


async def thirds(step: int, rollout: Rollout) -> float:
    """A third of the tasks is always solved, a third never, a third every second time."""
    return (1.0, 0.0, float(rollout.sample % 2))[rollout.input % 3]


def asked(made: Any) -> dict[int, list[int]]:
    """Step → its tasks."""
    found: dict[int, set[int]] = {}
    for record in made.records:
        found.setdefault(step_of(record.rollout), set()).add(record.rollout.input)
    return {step: sorted(tasks) for step, tasks in sorted(found.items())}


@pytest.mark.slow
async def test_a_run_asks_what_teaches_and_counts_the_rest(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 0, steps=12, batch_size=4, curriculum=HARD)
        summary = await made.fit(Play(made, thirds), TASKS)
    tasks = asked(made)
    assert all(len(of) == 4 for of in tasks.values()) and len(tasks) == 12
    late = Counter(task % 3 for step in range(6, 12) for task in tasks[step])
    assert late[2] >= 12, "half of each step at least"
    counts = made.driver.reports[-1].metrics
    known = {task for of in tasks.values() for task in of}
    assert counts["curriculum/too_easy"] == sum(task % 3 == 0 for task in known)
    assert counts["curriculum/too_hard"] == sum(task % 3 == 1 for task in known)
    assert counts["curriculum/inside"] == sum(task % 3 == 2 for task in known)
    assert counts["curriculum/unseen"] == len(TASKS) - len(known)
    assert summary["curriculum"] == {k: v for k, v in counts.items() if k.startswith("curriculum/")}
    assert await equal(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_resumed_run_asks_what_the_interrupted_one_asked(tmp_path: Path, ahead: int) -> None:
    given: dict[str, Any] = {"steps": 8, "batch_size": 3, "curriculum": HARD}
    async with ScriptedModelServer() as server:
        whole = line(server, tmp_path / "whole", ahead, **given)
        await whole.fit(Play(whole, thirds), TASKS)
        first = line(server, tmp_path, ahead, **given)

        async def update(step: int) -> None:
            if step == 4:
                raise Broke

        first.driver.update = update
        await break_off(first, Play(first, thirds), TASKS)
        kept = json.loads((tmp_path / "r" / "finished.json").read_text())[1]["curriculum"]
        assert sorted(map(int, kept["drawn"])) == list(range(4, 4 + ahead))
        again = line(server, tmp_path, ahead, resume=True, **given)
        await again.fit(Play(again, thirds), TASKS)
    assert plan(again) == plan(whole) and asked(again) == asked(whole)
    ours = [r.metrics["curriculum/inside"] for r in again.driver.reports]
    assert ours == [r.metrics["curriculum/inside"] for r in whole.driver.reports[4:]]
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_a_resumed_run_whose_results_differ_shares_no_rollout_with_another_choice(
    tmp_path: Path,
) -> None:
    """Steps behind the checkpoint are chosen anew, by what they earn now."""
    given: dict[str, Any] = {"steps": 6, "batch_size": 3, "curriculum": HARD}

    async def other(step: int, rollout: Rollout) -> float:
        return (0.0, float(rollout.sample % 2), 1.0)[rollout.input % 3]

    async with ScriptedModelServer() as server:
        first = line(server, tmp_path, 0, **given)

        async def update(step: int) -> None:
            if step == 4:
                raise Broke

        first.driver.update = update
        await break_off(first, Play(first, thirds), TASKS)
        kept = json.loads((tmp_path / "r" / "finished.json").read_text())
        (tmp_path / "r" / "finished.json").write_text(
            json.dumps([1, {**kept[1], "curriculum": {"name": "solve_rate", "drawn": {}, "state": {}}}])
        )
        again = line(server, tmp_path, 0, resume=True, **given)
        await again.fit(Play(again, other), TASKS)
    assert [report.step for report in again.driver.reports] == [1, 2, 3, 4, 5]
    for batch in again.driver.batches:
        assert len({ledger.rollout_id for ledger in batch.ledgers}) == 6
    assert await equal(tmp_path)


@pytest.mark.slow
async def test_extra_batches_come_from_the_curriculum_too(tmp_path: Path) -> None:
    drops = GRPO(group_size=2, filter_zero_std_groups=True)
    async with ScriptedModelServer() as server:
        made = line(
            server, tmp_path, 0, algorithm=drops, steps=6, dynamic_sampling=2, curriculum=HARD, batch_size=3
        )
        await made.fit(Play(made, thirds), TASKS)
    for step, tasks in asked(made).items():
        groups = made.driver.reports[step].metrics["dynamic_sampling/groups"]
        assert len(tasks) == groups  # no task twice
    assert any(r.metrics["dynamic_sampling/batches"] for r in made.driver.reports)


class Backwards:
    """A curriculum of somebody else: from the last task to the first."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.next = count, count - 1

    def choose(self, step: int, size: int, taken: Any = ()) -> list[int]:
        return [(self.next - n) % self.count for n in range(size)]

    def learn(self, step: int, groups: Any) -> None:
        self.next -= len(groups)

    def metrics(self) -> dict[str, float]:
        return {"curriculum/left": float(self.next + 1)}

    def state(self) -> dict[str, Any]:
        return {"next": self.next}

    def restore(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Plugin:
    @hookimpl
    def agl_curricula(self) -> list[CurriculumSpec]:
        return [CurriculumSpec("backwards", Backwards)]


@pytest.mark.slow
async def test_a_plugin_brings_a_curriculum(tmp_path: Path) -> None:
    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 0, Plugin(), steps=3, curriculum="backwards")
        summary = await made.fit(Play(made), TASKS)
    assert asked(made) == {0: [18, 19], 1: [16, 17], 2: [14, 15]}
    assert summary["curriculum"] == {"curriculum/left": 14.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "error", "what"),
    [
        ("solverate", PluginError, "no curriculum is called 'solverate'.*solve_rate"),
        (
            {"solve_rate": {"hi": 1}},
            ConfigError,
            r"training.curriculum.solve_rate.hi: there is no such option",
        ),
        (
            {"solve_rate": {"low": 2}},
            ConfigError,
            r"training.curriculum.solve_rate.low: .*less than or equal",
        ),
        ({"backwards": {"low": 2}}, ConfigError, r"training.curriculum.backwards: it has no options"),
        (
            {"wrong": None},
            ConfigError,
            r"curriculum 'wrong' chose \[0\] for step 1: it must return 2 positions",
        ),
    ],
)
async def test_what_cannot_choose_is_refused(
    tmp_path: Path, given: Any, error: type[UsageError], what: str
) -> None:
    class Wrong(Backwards):
        def choose(self, step: int, size: int, taken: Any = ()) -> list[int]:
            return [0]

    class Both:
        @hookimpl
        def agl_curricula(self) -> list[CurriculumSpec]:
            return [CurriculumSpec("backwards", Backwards), CurriculumSpec("wrong", Wrong)]

    async with ScriptedModelServer() as server:
        made = line(server, tmp_path, 0, Both(), curriculum=given)
        with pytest.raises(error, match=what):
            await made.fit(Play(made), TASKS)


class Guess:
    """Makes one guided answer, and counts the words that training asks."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def run(self, task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
        self.asked[task["word"]] += int(rollout.mode == "train")
        http = httpx.AsyncClient(verify=False)  # no certificates to read: it is loopback, and there are many
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, http_client=http) as client:
            done = await client.chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": task["word"]}],
                max_tokens=2,
                extra_body={"guided_choice": ["a", "b"]},
            )
        return float(done.choices[0].message.content in task["right"])


@pytest.mark.slow
@pytest.mark.plugins
async def test_a_policy_learns_by_it_and_asks_what_can_be_learned(tmp_path: Path) -> None:
    """Of 40 tasks four can be learned. Drawn evenly, nine groups of ten would teach nothing."""
    saved_policy(tmp_path / "policy", 1)
    learnable = [(word, ["a"]) for word in ("coins", "stones", "birds", "days")]
    useless = [(f"{n} more", ["a", "b"] if n % 2 else []) for n in range(36)]
    tasks = [{"word": word, "right": right} for word, right in (*learnable, *useless)]
    watch, agent = Watch(), Guess()
    made = trainer(
        tmp_path / "runs",
        watch,
        run="r",
        adapters=[],
        algorithm=GRPO(group_size=8),
        policy=tmp_path / "policy",
        options={"threads": 1, "engine": "thread", "max_num_seqs": 32, "max_len": 64, "lr": 5e-4},
        steps=14,
        batch_size=4,
        curriculum={"solve_rate": {"low": 0.1, "high": 0.9, "window": 1, "explore": 0.25}},
        plugins=build([agl_local.plugin, agl_schedules.plugin, watch], discover=False),
    )
    summary = await made.afit(agent, tasks, tasks[:4] * 6)
    assert summary["sampled_after"] > summary["sampled_before"] + 0.15
    asked = sum(agent.asked[word] for word, _ in learnable)
    assert sum(agent.asked.values()) == 14 * 4 * 8
    assert asked > 0.13 * 14 * 4 * 8, "drawn evenly, they are 0.1 of what is asked"
    assert summary["curriculum"]["curriculum/too_hard"] > 0 < summary["curriculum"]["curriculum/too_easy"]
