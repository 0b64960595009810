"""A run's groups are chosen by this plugin or a stranger's, never by two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from e2e.playing import TASKS, Play, equal, line, plan

import agl_schedules.plugin
from agentlightning import GRPO, Trainer, hookimpl
from agentlightning.algorithms.context import Context
from agentlightning.algorithms.crediting import StepCrediting
from agentlightning.algorithms.schedule import InOrder, added_settings, schedule_of
from agentlightning.plugins.manager import build
from agentlightning.specs import ScheduleSpec
from agentlightning.train.config import from_fields
from agentlightning.types import Batch, Evaluation, Recipe, UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import TrainingSection

OURS = build([agl_schedules.plugin], discover=False)


class Halves(InOrder):
    """A stranger's schedule: the first half of each batch alone, and not beyond the second step."""

    async def collect(self, step: int, credit: StepCrediting) -> Batch:
        batch = await super().collect(step, credit)
        batch.metrics["halves/step"] = float(step)
        return batch

    def groups_of_step(self, step: int) -> Any:
        return super().groups_of_step(step)[: self.training.batch_size // 2]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "halves": True}

    def summary(self, steps: int) -> dict[str, Any]:
        return {"halves": steps}


class Seen:
    """Looks at the evaluations."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[str]]] = []

    async def evaluated(self, step: int, evaluations: Any) -> None:
        assert all(isinstance(one, Evaluation) for one in evaluations.values())
        self.seen.append((step, sorted(evaluations)))

    def summary(self) -> dict[str, Any]:
        return {"seen": len(self.seen)}


class Stranger:
    def __init__(self) -> None:
        self.watch = Seen()

    @hookimpl
    def agl_schedules(self, recipe: Recipe, training: TrainingSection) -> ScheduleSpec:
        def groups(context: Context) -> Halves:
            return Halves(context, recipe, training)

        return ScheduleSpec(groups, lambda context: self.watch, ["steps"], ["steps"])

    @hookimpl
    def agl_end_training(self, step: int, evaluation: Evaluation, evaluations: Any) -> str | None:
        """Ends after two steps."""
        assert evaluations[f"step-{step}"] == evaluation and "before/hard" in evaluations
        return "two are enough" if step == 2 else None


async def test_a_plugin_chooses_the_groups_of_a_run_and_ends_it(tmp_path: Path) -> None:
    stranger = Stranger()
    async with ScriptedModelServer() as server:
        given: dict[str, Any] = {"steps": 4, "evaluate_every": 1, "sets": {"hard": [1]}}
        made = line(server, tmp_path, 1, stranger, **given)
        summary = await made.fit(Play(made), TASKS, TASKS[:1])
    assert summary["steps"] == summary["halves"] == 2 and summary["ended"] == "two are enough"
    assert stranger.watch.seen == [(step, ["", "hard"]) for step in (0, 1, 2, 2)] and summary["seen"] == 4
    assert [report.metrics["halves/step"] for report in made.driver.reports] == [0.0, 1.0]
    assert len({task for task, _ in plan(made).values()}) >= 2
    assert await equal(tmp_path)


@pytest.mark.slow
def test_two_plugins_are_one_too_many() -> None:
    both = build([agl_schedules.plugin, Stranger()], discover=False)
    with pytest.raises(ConfigError, match="two plugins would choose"):
        schedule_of(both, GRPO(), from_fields({"quorum": {"k": 2}}).training)
    assert schedule_of(both, GRPO(), from_fields({}).training).chooses_by == ["steps"]


@pytest.mark.slow
def test_a_setting_that_nobody_carries_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.quorum: no plugin of this run carries it out"):
        schedule_of(build(discover=False), GRPO(), from_fields({"quorum": {"k": 2}}).training)


@pytest.mark.slow
def test_what_is_not_set_needs_no_plugin() -> None:
    plain = from_fields({"steps": 3}).training
    assert added_settings(plain) == {}
    for plugins in (OURS, build(discover=False)):
        assert schedule_of(plugins, GRPO(), plain) == ScheduleSpec()
    assert schedule_of(OURS, GRPO(), TrainingSection()) == ScheduleSpec()


@pytest.mark.slow
def test_an_algorithm_of_ones_own_refuses_what_a_schedule_would_do() -> None:
    from agentlightning.train.trainer import algorithm_of

    for fields in ({"async_steps": 1}, {"quorum": {"k": 99}}, {"curriculum": "solve_rate"}):
        trainer = Trainer("baseline", plugins=OURS, **fields)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"training.{next(iter(fields))}: only training with a recipe"):
            algorithm_of(trainer.config, trainer.plugins, trainer)
