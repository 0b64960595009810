"""Which groups a step trains: those of its own batch of tasks, or those that a plugin chooses.

A step asks one :class:`Schedule` for its groups. Without a plugin that answers the hook ``agl_schedules`` it
is :class:`InOrder`, which goes through the dataset. A :class:`Watch` looks at the evaluations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.crediting import StepCrediting
from agentlightning.algorithms.queue import Prefetcher, TaskGroups
from agentlightning.algorithms.tasks import repetition_warning, task_batches
from agentlightning.plugins.manager import Plugins
from agentlightning.specs import ScheduleSpec
from agentlightning.types import Batch, Evaluation, Progress, Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import TrainingSection


class Schedule(Protocol):
    """Chooses the groups of a run's steps, and queues their rollouts."""

    async def collect(self, step: int, credit: StepCrediting) -> Batch:
        """Return the rows of the step's groups, all of whose rollouts have ended, by ``credit.add``. Called
        once for each step, in order.
        """

    def state(self) -> dict[str, Any]:
        """Return its part of a checkpoint, as JSON: entries beside those of the run."""

    def summary(self, steps: int) -> dict[str, Any]:
        """Return its entries of the summary of a run that has trained so many steps."""

    async def end(self) -> int:
        """Cancel the rollouts that will not be trained; return how many."""


class Watch(Protocol):
    """Looks at the evaluations of a run while the policy is as it was evaluated."""

    async def evaluated(self, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Take the evaluations after ``step`` finished steps: name of the set → evaluation, and that of the
        held-out tasks under an empty name.
        """

    def summary(self) -> dict[str, Any]:
        """Return its entries of the run's summary."""


def schedule_of(plugins: Plugins, recipe: Recipe | None, training: TrainingSection) -> ScheduleSpec:
    """Return what chooses the groups of the steps, by the hook ``agl_schedules``. Raise :class:`ConfigError`
    if it does not work with the recipe, or if no plugin, or more than one, carries out what is set.
    ``recipe=None``: of an algorithm with a loop of its own.
    """
    if recipe is not None and recipe.max_staleness < (ahead := training.async_steps):
        raise ConfigError(
            f"training.async_steps = {ahead} with recipe.max_staleness = {recipe.max_staleness}: calls "
            f"made that early are up to {ahead} versions old when they are trained, and the recipe "
            f"leaves them out; set recipe.max_staleness to {ahead} or more, best with "
            "recipe.importance_cap (say 2.0), which corrects for their age"
        )
    found = [*plugins.answers("agl_schedules", recipe=recipe, training=training)]
    if len(found) > 1:
        raise ConfigError(
            "training: two plugins would choose the groups of its steps; leave one out with AGL_PLUGINS"
        )
    if not found and (name := next(iter(added_settings(training)), None)) is not None:
        raise ConfigError(
            f"training.{name}: no plugin of this run carries it out; drop it, or give Trainer(plugins=…) one "
            "that does"
        )
    return found[0] if found else ScheduleSpec()


def check_ends_early(schedule: ScheduleSpec, driver: str, ends_early: bool) -> None:
    """Raise if ``schedule`` ends the run early or keeps its best policy, and the driver can do neither."""
    if schedule.ends_early and not ends_early:
        raise ConfigError(
            f"driver {driver!r} cannot carry out training.{schedule.ends_early[0]}: it neither ends at "
            "another step than its last nor exports a policy between two checkpoints; use the driver "
            "'local', or drop it and choose a checkpoint with `agl export --step`"
        )


def added_settings(training: TrainingSection) -> dict[str, Any]:
    """Return the fields that plugins have added to the section ``training`` and that are set, by name."""
    found = {name: (getattr(training, name), field) for name, field in type(training).model_fields.items()}
    return {
        name: value
        for name, (value, field) in found.items()
        if name not in TrainingSection.model_fields and value != field.get_default(call_default_factory=True)
    }


class InOrder:
    """The tasks batch by batch, each epoch in an order of its own; ``async_steps`` batches are queued ahead.

    A schedule of a plugin may begin with it. A run that resumes skips the batches of finished steps.
    """

    def __init__(self, context: Context, recipe: Recipe, training: TrainingSection) -> None:
        self.context, self.recipe, self.training = context, recipe, training
        self.group_size = recipe.group_size
        """Rollouts that are queued of a task."""
        self.queue = self.open_queue()
        if not training.steps:
            return
        if said := repetition_warning(context.train, training.batch_size):
            context.say(said)
        self._batches = task_batches(context.train, training.batch_size, context.seed)
        for _ in range(self.queue.first_batch(context.first_step)):
            next(self._batches)

    def open_queue(self) -> Prefetcher:
        """Return what queues the groups of the run's steps."""
        steps, ahead = self.training.steps, self.training.async_steps
        return Prefetcher(self.context.store, self.groups_of_step, steps=steps, async_steps=ahead)

    async def collect(self, step: int, credit: StepCrediting) -> Batch:
        """Queue, await and credit the groups of the step."""
        groups, found = await self.own_groups(step, credit)
        batch = await credit.add(groups)
        self.queue.finish(step)
        batch.metrics.update(found)
        return batch

    def state(self) -> dict[str, Any]:
        return self.queue.state()

    def summary(self, steps: int) -> dict[str, Any]:
        return {}

    async def end(self) -> int:
        return await self.queue.end()

    async def own_groups(self, step: int, credit: StepCrediting) -> tuple[TaskGroups, dict[str, float]]:
        """Return the groups of the step's own batch, whose rollouts have ended, and metrics of the wait."""
        found, groups = await self.queue.progress(step), await self.queue.take(step)
        return groups, found | await self.wait(step, groups, credit)

    async def wait(self, step: int, groups: TaskGroups, credit: StepCrediting) -> dict[str, float]:
        """Wait for queued groups, of which ``credit`` credits those that have ended; return metrics."""
        ids = [rollout.rollout_id for group in groups for rollout in group]
        self.say_awaited(step, ids)
        over = asyncio.Event()
        following = asyncio.create_task(credit.follow(groups, over))
        try:
            await self.context.store.wait_for_rollouts(ids)
        finally:
            over.set()
            await following
        return {}

    def groups_of_step(self, step: int) -> TaskGroups:
        """Return the groups of the next batch of tasks."""
        return self.groups(f"train/{step}", next(self._batches))

    def groups(self, name: str, tasks: list[Any], numbers: list[int] | None = None) -> TaskGroups:
        """Return a group of rollouts for each task. Ids and seeds depend on ``name`` and ``numbers``."""
        size = self.group_size
        rollouts = self.context.rollouts(tasks, size, name=name, mode="train", numbers=numbers)
        return [rollouts[i : i + size] for i in range(0, len(rollouts), size)]

    def say_awaited(self, step: int, ids: list[str]) -> None:
        """Notify hooks of the rollouts that a step waits for."""
        progress = Progress(what="rollouts", step=step, rollouts=ids)
        self.context.plugins.ask("agl_progress", progress=progress)
