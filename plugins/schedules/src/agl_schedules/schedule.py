"""The groups of a step, chosen by a curriculum, taken as they end, and refilled.

:meth:`ChosenGroups.collect`, read top to bottom, is a step: its groups are taken, waited for and credited;
until enough of them have a spread, further batches are rolled out; the curriculum learns what they earned.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.crediting import StepCrediting
from agentlightning.algorithms.queue import Prefetcher, TaskGroups
from agentlightning.algorithms.schedule import InOrder
from agentlightning.types import Batch, Recipe
from agl_schedules.curriculum import open_curriculum
from agl_schedules.dynamic_sampling import extra_batches, groups_with_spread, refill_metrics
from agl_schedules.finished_first import STATE, FinishedFirst
from agl_schedules.quorum import wait_for_groups
from agl_schedules.settings import ScheduledTraining


class ChosenGroups(InOrder):
    """Chooses the groups of a run's steps as ``training`` says."""

    training: ScheduledTraining

    def __init__(self, context: Context, recipe: Recipe, training: ScheduledTraining) -> None:
        self._curriculum = open_curriculum(context.plugins, training, context.train)
        if self._curriculum is not None:
            self._curriculum.restore(context.progress)
        super().__init__(context, recipe, training)
        self.group_size += training.quorum.hedge if training.quorum else 0

    def open_queue(self) -> Prefetcher:
        training, context = self.training, self.context
        if training.order == "dataset":
            return super().open_queue()
        return FinishedFirst(
            context.store,
            self.groups_of_step,
            steps=training.steps,
            async_steps=training.async_steps,
            batch_size=training.batch_size,
            max_staleness=self.recipe.max_staleness,
            state=context.progress.get(STATE),
        )

    async def collect(self, step: int, credit: StepCrediting) -> Batch:
        training, size = self.training, self.training.batch_size
        groups, found = await self._own_groups(step, credit)
        batch = await credit.add(groups)
        more = self._extra_groups(step, groups)
        for _ in range(training.dynamic_sampling):
            if groups_with_spread(batch, groups) >= size or await self.context.exhausted():
                break
            extra = next(more)
            await self.queue.add(step, extra)
            also = await self.wait(step, extra, credit)
            found |= {name: found[name] + value for name, value in also.items()}
            groups = [*groups, *extra]
            batch = await credit.add(extra)
        self.queue.finish(step)
        if training.dynamic_sampling:
            found |= refill_metrics(batch, groups, size)
        if self._curriculum is not None:
            needed = self.queue.first_batch(step + 1)
            found |= self._curriculum.credited(step, groups, credit.outcomes, needed)
        batch.metrics.update(found)
        return batch

    def state(self) -> dict[str, Any]:
        kept = super().state()
        return kept if self._curriculum is None else {**kept, **self._curriculum.state()}

    def summary(self, steps: int) -> dict[str, Any]:
        return {} if self._curriculum is None else {"curriculum": self._curriculum.curriculum.metrics()}

    async def wait(self, step: int, groups: TaskGroups, credit: StepCrediting) -> dict[str, float]:
        """Wait for groups; return the quorum's metrics. With a quorum all are credited at the end: which
        rollouts count is known only then.
        """
        if self.training.quorum is None:
            return await super().wait(step, groups, credit)
        self.say_awaited(step, [rollout.rollout_id for group in groups for rollout in group])
        failure = self.training.failure
        return await wait_for_groups(self.context.store, groups, self.training.quorum, failure=failure)

    def groups_of_step(self, step: int) -> TaskGroups:
        """Return the groups of a step: those of the next batch of tasks, or of the curriculum's choice."""
        if self._curriculum is None:
            return super().groups_of_step(step)
        return self.groups(f"train/{step}", *self._curriculum.step(step))

    async def _own_groups(self, step: int, credit: StepCrediting) -> tuple[TaskGroups, dict[str, float]]:
        """Return the groups that the step trains, whose rollouts have ended, and metrics of the wait."""
        if isinstance(self.queue, FinishedFirst):
            awaited = partial(self.say_awaited, step)
            return await self.queue.take_finished(step, self.context.versions, credit.ended, awaited)
        return await self.own_groups(step, credit)

    def _extra_groups(self, step: int, groups: TaskGroups) -> Iterator[TaskGroups]:
        """Yield the groups of a step's extra batches; ``groups``: those that it has."""
        chosen: Iterator[tuple[list[Any], list[int] | None]]
        if self._curriculum is not None:
            chosen = self._curriculum.extra(step, groups)
        else:
            own, size = [group[0].input for group in groups], self.training.batch_size
            drawn = extra_batches(self.context.train, size, self.context.seed, step, own)
            chosen = ((tasks, None) for tasks in drawn)
        for number, (tasks, numbers) in enumerate(chosen, 1):
            yield self.groups(f"train/{step}+{number}", tasks, numbers)
