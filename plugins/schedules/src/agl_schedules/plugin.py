"""Registers the fields of the section ``training``, the schedule and the early end that they ask for, and a
curriculum.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import ScheduleSpec, SectionSpec, lazily, lazy_type
from agl_schedules import hookspecs
from agl_schedules.specs import CurriculumSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentlightning.types import Evaluation, Recipe
    from agentlightning.types.sections import TrainingSection


@hookimpl
def agl_sections() -> list[SectionSpec]:
    settings = "agl_schedules.settings"
    return [
        SectionSpec("schedule", "training", lazy_type(f"{settings}:ScheduledTraining"), fixed=("order",)),
        SectionSpec("schedule of a run", "", lazy_type(f"{settings}:ScheduledRun")),
    ]


@hookimpl
def agl_schedules(recipe: Recipe | None, training: TrainingSection) -> ScheduleSpec | None:
    from agl_schedules.settings import ScheduledTraining, check_schedule

    if not isinstance(training, ScheduledTraining):
        return None
    chooses_by, ends_early = training.chooses_by, training.ends_early
    if not chooses_by and not ends_early:
        return None
    if recipe is not None:
        check_schedule(recipe, training)
    groups = partial(lazily("agl_schedules.schedule:ChosenGroups"), recipe=recipe, training=training)
    watch = partial(lazily("agl_schedules.best_policy:KeptBest"), by=training.keep_best)
    return ScheduleSpec(
        groups if chooses_by else None, watch if training.keep_best else None, chooses_by, ends_early
    )


@hookimpl
def agl_end_training(
    step: int, evaluations: Mapping[str, Evaluation], training: TrainingSection
) -> str | None:
    from agl_schedules.early_stopping import reason_to_end
    from agl_schedules.settings import ScheduledTraining

    if not isinstance(training, ScheduledTraining) or training.early_stopping is None:
        return None
    return reason_to_end(training.early_stopping, step, evaluations)


@hookimpl
def agl_hookspecs() -> list[Any]:
    return [hookspecs]


@hookimpl
def agl_curricula() -> list[CurriculumSpec]:
    room = "agl_schedules.solve_rate"
    about = "prefers tasks that the policy solves sometimes, by a window of measured solve rates"
    return [
        CurriculumSpec(
            "solve_rate", lazily(f"{room}:SolveRate"), about, lazy_type(f"{room}:SolveRateOptions")
        )
    ]
