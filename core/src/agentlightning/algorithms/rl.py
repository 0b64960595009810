"""Policy-gradient RL: evaluate, let a driver run the recipe, evaluate again.

The algorithm does what all drivers share: it chooses the tasks of a step, credits their records, and
schedules evaluations. The driver runs the loop and computes the gradient. :meth:`RLJob.collect`, read top
to bottom, is the path from a task to the rows of a step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.crediting import StepCrediting
from agentlightning.algorithms.curriculum.steps import open_curriculum
from agentlightning.algorithms.evaluation.best_policy import BestPolicy
from agentlightning.algorithms.evaluation.evaluation_sets import NamedSets, scores
from agentlightning.algorithms.evaluation.headroom import measure_headroom
from agentlightning.algorithms.no_signal import NoSignalGuard, nothing_learned
from agentlightning.algorithms.recipe_checks import check_schedule
from agentlightning.algorithms.rollouts.batching import repetition_warning, task_batches
from agentlightning.algorithms.rollouts.dynamic_sampling import (
    extra_batches,
    groups_with_spread,
    refill_metrics,
)
from agentlightning.algorithms.rollouts.finished_first import FinishedFirst, make_prefetcher
from agentlightning.algorithms.rollouts.prefetch import TaskGroups
from agentlightning.algorithms.rollouts.quorum import wait_for_groups
from agentlightning.algorithms.totals import Totals
from agentlightning.credit.accounts import policy_batch
from agentlightning.credit.assign import StepCredit
from agentlightning.credit.eligibility import Versions, version_of
from agentlightning.credit.fingerprint import add_rows, terms_digest
from agentlightning.types import Batch, Evaluation, Progress, Recipe, RolloutFingerprint, StepReport
from agentlightning.types.sections import EnvironmentSection, TrainingSection


class RL:
    """Trains with ``recipe`` as ``training`` says: steps, batch size, failure table, quorum and schedule.

    Of ``environment`` it reads how many tasks scripted policies answer. Raises ``UsageError`` if the schedule
    does not work with the recipe.
    """

    def __init__(
        self,
        recipe: Recipe,
        training: TrainingSection,
        environment: EnvironmentSection = EnvironmentSection(),
    ) -> None:
        check_schedule(recipe, training)
        self.recipe = recipe
        self.training = training
        self.environment = environment

    async def run(self, context: Context) -> dict[str, Any]:
        """Evaluate, train, evaluate; return both evaluations and the seconds of training for the summary."""
        if context.driver is None:
            raise ValueError("RL needs a driver; name one with backend.driver")
        job = await self.make_job(context)
        before = await job.look("before", None if job.first_step else 0)
        sampled_before = await job.measure_sampled("before-sampled")
        for guard in context.guards:
            guard.keep_back()
        job.headroom = await measure_headroom(context, before, job.measure, self.environment.headroom_tasks)
        if job.first_step:  # the interrupted run may lack the evaluation after its checkpoint
            await job.evaluate(job.first_step - 1)
        await job.end_if_exhausted(job.first_step)
        began = time.perf_counter()
        try:
            await context.driver.run(job)
        finally:
            await job.end()
        seconds = time.perf_counter() - began
        job.say_if_nothing_learned()
        after = await job.look_last()
        sampled_after = await job.measure_sampled("after-sampled") if after else None
        return {
            "recipe": self.recipe.model_dump(),
            "steps": job.steps,
            **({"ended": job.ended} if job.ended else {}),
            **({"best": job.best} if job.best else {}),
            **scores("before", before),
            **scores("after", after),
            **job.sets.summary(),
            "sampled_before": sampled_before and sampled_before.reward,
            "sampled_after": sampled_after and sampled_after.reward,
            "eval_tasks": before.n if before else 0,
            "eval_failed": [before.failed, after.failed] if before and after else None,
            "eval_left_out": [before.left_out, after.left_out] if before and after else None,
            "train_seconds": round(seconds, 3),
            "headroom": job.headroom,
            "learned": job.learned,
            "totals": job.totals.values,
            **({"policies": job.totals.policies} if job.totals.policies else {}),
            **job.summary(),
        }

    async def make_job(self, context: Context) -> RLJob:
        """Return the run as the driver gets it."""
        return RLJob(context, self)


class RLJob:
    """A training run, as the driver gets it (:class:`agentlightning.specs.Job`)."""

    alone = True

    def __init__(self, context: Context, rl: RL) -> None:
        self.context = context
        self.rl = rl
        self.training = training = rl.training
        self.run_id = context.run_id
        self.recipe = rl.recipe
        self.policy = context.policy
        self.steps = training.steps
        self.first_step = context.first_step
        self.seed = context.seed
        self.folder: Path = context.folder
        self.headroom: dict[str, float] = {}
        self.totals = Totals()
        self._best = BestPolicy(context.folder) if training.keep_best else None
        self.sets = NamedSets(context)
        self.ended: str | None = None
        """Why training ended before its last step."""
        self._no_signal = NoSignalGuard(context.say, rl.recipe.credit, training.no_signal_steps)
        self._fingerprints: dict[str, list[RolloutFingerprint]] = {}
        """Fingerprints of the present step, by policy."""
        self._reason = ""
        """The commonest reason for which rollouts of the present step failed."""
        self._versions: Versions = None
        """Policy versions that the rows of the step are built for."""
        self._curriculum = open_curriculum(context.plugins, training, context.train)
        self._batches = self.task_batches() if self.steps else None
        self._prefetcher = make_prefetcher(
            context.store, self._groups_of_step, training, self.recipe, context.progress
        )
        self._restore(context.progress)

    def task_batches(self) -> Iterator[list[Any]]:
        """Yield the tasks of each step, from the first step of the run on; say if tasks repeat in a step."""
        if said := repetition_warning(self.context.train, self.training.batch_size):
            self.context.say(said)
        return task_batches(self.context.train, self.training.batch_size, self.seed)

    def summary(self) -> dict[str, Any]:
        """Return what the run's summary says beside rewards and totals."""
        return {} if self._curriculum is None else {"curriculum": self._curriculum.curriculum.metrics()}

    # ----------------------------------------------------------------------------- what a checkpoint keeps
    def state(self) -> dict[str, Any]:
        """Return the job's part of a checkpoint, as JSON. Built-in rules and baselines have no state."""
        kept = {**self.totals.state(), **self._no_signal.state(), **self._prefetcher.state()}
        return kept if self._curriculum is None else {**kept, **self._curriculum.state()}

    def _restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, and skip the batches of finished steps."""
        self.totals.restore(state)
        self._no_signal.restore(state)
        if self._curriculum is not None:
            self._curriculum.restore(state)
        if self._batches is not None:
            for _ in range(self._prefetcher.first_batch(self.first_step)):
                next(self._batches)

    # ------------------------------------------------------------------------------ task → rows (one step)
    async def collect(self, step: int) -> Batch:
        """Roll out this step's tasks and credit them.

        Tasks become groups of rollouts in the store; runners lease them; the gateway records their calls;
        when all are finished, credit turns calls and rewards into rows. With ``async_steps``, rollouts of
        later steps run meanwhile and afterwards; with ``order: finished`` the step takes those groups that
        are finished first.
        """
        credit = self._crediting(step)
        groups, found = await self._own_groups(step, credit)
        batch = await credit.add(groups)
        more = self._extra_groups(step, groups)
        for _ in range(self.training.dynamic_sampling):
            enough = groups_with_spread(batch, groups) >= self.training.batch_size
            if enough or await self.context.exhausted():
                break
            extra = next(more)
            await self._prefetcher.add(step, extra)
            also = await self._wait_for(step, extra, credit)
            found |= {name: found[name] + value for name, value in also.items()}
            groups = [*groups, *extra]
            batch = await credit.add(extra)
        self._prefetcher.finish(step)
        if self.training.dynamic_sampling:
            found |= refill_metrics(batch, groups, self.training.batch_size)
        if self._curriculum is not None:
            needed = self._prefetcher.first_batch(step + 1)
            found |= self._curriculum.credited(step, groups, credit.outcomes, needed)
        for guard in self.context.guards:
            found |= guard.metrics()
        batch.metrics.update(found)
        self._reason = credit.reason
        await self._record_step(step, batch, credit.fingerprints)
        return batch

    async def _own_groups(self, step: int, credit: StepCrediting) -> tuple[TaskGroups, dict[str, float]]:
        """Return the groups that the step trains, whose rollouts have ended, and metrics of the wait."""
        if isinstance(self._prefetcher, FinishedFirst):
            awaited = partial(self._say_awaited, step)
            return await self._prefetcher.take_finished(step, self._versions, credit.ended, awaited)
        found, groups = await self._prefetcher.progress(step), await self._prefetcher.take(step)
        return groups, found | await self._wait_for(step, groups, credit)

    async def _wait_for(self, step: int, groups: TaskGroups, credit: StepCrediting) -> dict[str, float]:
        """Wait for queued groups, of which ``credit`` credits those that have ended; return the quorum's
        metrics. With a quorum all are credited at the end: which rollouts count is known only then.
        """
        quorum, failure = self.training.quorum, self.training.failure
        self._say_awaited(step, [rollout.rollout_id for group in groups for rollout in group])
        over = asyncio.Event()
        following = asyncio.create_task(credit.follow(groups if quorum is None else [], over))
        try:
            return await wait_for_groups(self.context.store, groups, quorum, failure=failure)
        finally:
            over.set()
            await following

    def _crediting(self, step: int) -> StepCrediting:
        """Return what credits a step's rollouts, for the versions served now."""
        self._versions = self.context.versions
        failure, functions = self.training.failure, self.context.plugins.credit_functions
        make = partial(StepCredit, self.recipe, version=self._versions, failure=failure, **functions)
        return StepCrediting(self.context.store, make, run_id=self.run_id, step=step)

    async def _record_step(
        self, step: int, batch: Batch, fingerprints: Mapping[str, RolloutFingerprint]
    ) -> None:
        """Count a collected step, fingerprint its rows, and notify hooks. ``fingerprints``: rollout id → its
        fingerprint without rows.
        """
        self.totals.collected(batch.metrics)
        for name, version, mine in self._by_policy(batch):  # in a thread: it hashes every token of the step
            self._fingerprints[name] = await asyncio.to_thread(
                add_rows, fingerprints.values(), mine, policy=name, version=version
            )
        self.context.plugins.notify("agl_rows_built", step=step, batch=batch)
        # Only a step without a signal is described by its records, which are read again for that.
        silent = [] if self._no_signal.learnable(batch) else list(fingerprints)
        self._no_signal.step(step, batch, await self.context.store.records(silent))

    def _groups_of_step(self, step: int) -> TaskGroups:
        """Return the groups of a step: those of the next batch of tasks, or of the curriculum's choice."""
        if self._curriculum is not None:
            return self._groups(f"train/{step}", *self._curriculum.step(step))
        assert self._batches is not None
        return self._groups(f"train/{step}", next(self._batches))

    def _extra_groups(self, step: int, groups: TaskGroups) -> Iterator[TaskGroups]:
        """Yield the groups of a step's extra batches; ``groups``: those that it has."""
        if self._curriculum is not None:
            for number, chosen in enumerate(self._curriculum.extra(step, groups), 1):
                yield self._groups(f"train/{step}+{number}", *chosen)
        own, size = [group[0].input for group in groups], self.training.batch_size
        for number, tasks in enumerate(extra_batches(self.context.train, size, self.seed, step, own), 1):
            yield self._groups(f"train/{step}+{number}", tasks)

    def _groups(self, name: str, tasks: list[Any], numbers: list[int] | None = None) -> TaskGroups:
        """Return a group of rollouts for each task. Ids and seeds depend on ``name`` and ``numbers``."""
        size = self.recipe.group_size + (self.training.quorum.hedge if self.training.quorum else 0)
        rollouts = self.context.rollouts(tasks, size, name=name, mode="train", numbers=numbers)
        return [rollouts[i : i + size] for i in range(0, len(rollouts), size)]

    def _by_policy(self, batch: Batch) -> list[tuple[str, int | None, Batch]]:
        """Return each policy, its version, and its batch of the step."""
        if not isinstance(self._versions, Mapping):
            return [(self.policy, self._versions, batch)]
        return [(name, version, policy_batch(batch, name)) for name, version in self._versions.items()]

    async def end(self) -> None:
        """Cancel the rollouts that will not be trained. A run that has finished its steps has none."""
        if n := await self._prefetcher.end():
            self.context.say(f"{n} rollouts were under way and are cancelled: they would not be trained")

    def _say_awaited(self, step: int, ids: list[str]) -> None:
        self.progress(Progress(what="rollouts", step=step, rollouts=ids))

    def progress(self, progress: Progress) -> None:
        """Notify hooks of how far a long piece of work is."""
        self.context.plugins.notify("agl_progress", progress=progress)

    async def report(self, report: StepReport) -> None:
        """Store the step of a policy with its fingerprints, add it to the totals, and notify hooks and
        trackers. By then every gateway serves by the new version.
        """
        await self.context.gateway.settle()
        report.reason = self._reason
        report.version = version_of(self._versions, report.policy)
        if isinstance(self._versions, Mapping):
            report.versions = dict(self._versions)
        report.terms_digest = terms_digest(self.recipe, self.training.failure)
        await self.context.journal.step(report, self._fingerprints[report.policy])
        if guarded := self.context.guarded():
            await self.context.store.update_run(self.run_id, guarded)
        self.totals.count(report, multi_policy=isinstance(self._versions, Mapping))
        self.context.plugins.notify("agl_policy_updated", report=report)

    @property
    def learned(self) -> bool | None:
        """Whether any token was trained; ``None`` for a run without steps."""
        return bool(self.totals.values["tokens_trained"]) if self.steps else None

    def say_if_nothing_learned(self) -> None:
        """Print at the end that the run left the policy as it was."""
        if self.learned is False:
            self.context.say(nothing_learned(self.steps, self.totals.values["tokens_zero_advantage"]))

    async def saved(self, folder: Path, step: int) -> None:
        """Add a checkpoint to the run's chain and notify hooks."""
        await self.context.journal.checkpoint(folder)
        self.context.plugins.notify("agl_checkpoint_saved", folder=folder, step=step)

    # -------------------------------------------------------------------------------------- evaluation
    async def evaluate(self, step: int) -> Evaluation | None:
        """Make and return the evaluation that is due after ``step``, if any."""
        await self.end_if_exhausted(step + 1)
        every = self.training.evaluate_every
        if not every or (step + 1) % every or step + 1 >= self.steps:
            return None
        evaluation = await self.look(f"step-{step + 1}", step + 1)
        if evaluation is not None:
            self._end_if_asked(step + 1, evaluation)
        return evaluation

    async def look(self, when: str, step: int | None) -> Evaluation | None:
        """Evaluate on the held-out tasks and on each named set; keep the policy of ``step`` steps if best."""
        found, sets = await self.measure(when), await self.sets.measure(when)
        by = self.training.keep_best
        if step is not None:
            await self._keep_if_best(step, sets.get(by) if isinstance(by, str) else found)
        return found

    async def look_last(self) -> Evaluation | None:
        """Make the evaluation after training, or say why it is missing: no call is admitted any more."""
        if (why := await self.context.exhausted(last=True)) is not None:
            self.context.say(f"the evaluation 'after' is missing: no call is admitted any more ({why})")
            return None
        before = self._refused
        found = await self.look("after", self.steps)
        if n := self._refused - before:
            why = await self.context.exhausted()
            self.context.say(f"evaluation 'after': {n} calls were refused ({why}); see failed")
        return found

    @property
    def _refused(self) -> int:
        return sum(guard.refused for guard in self.context.guards)

    async def _keep_if_best(self, step: int, evaluation: Evaluation | None) -> None:
        """Keep the present policy, of ``step`` finished steps, if its evaluation is the best so far."""
        if self._best is None or evaluation is None or self.context.driver is None:
            return
        if await self._best.consider(step, evaluation, self.context.driver):
            what = f"{evaluation.reward:.3f} ({evaluation.name})"
            self.context.say(f"best held-out reward so far: {what}, after step {step}; kept")

    def _end_if_asked(self, step: int, evaluation: Evaluation) -> None:
        """End training after ``step`` finished steps if a plugin gives a reason."""
        reasons = self.context.plugins.ask("agl_end_training", step=step, evaluation=evaluation)
        if reasons:
            self.ended, self.steps = "; ".join(map(str, reasons)), step
            self.context.say(f"training ends after step {step} of {self.training.steps}: {self.ended}")

    async def end_if_exhausted(self, step: int) -> None:
        """End training after ``step`` finished steps if no call is admitted any more."""
        if (why := await self.context.exhausted()) is None:
            return
        self.ended, self.steps = f"stopped by {why}", step
        self.context.say(f"training ends after step {step} of {self.training.steps}: {self.ended}")

    @property
    def best(self) -> dict[str, Any] | None:
        """Return the record of the best policy, if it is kept."""
        return self._best.record if self._best else None

    async def measure(
        self, name: str, policy: str | None = None, limit: int | None = None, greedy: bool = True
    ) -> Evaluation | None:
        """Evaluate on the held-out tasks; return ``None`` without any."""
        tasks = self.context.val[:limit] if limit else self.context.val
        return await self.context.evaluate(tasks, name=name, policy=policy, greedy=greedy) if tasks else None

    async def measure_sampled(self, name: str) -> Evaluation | None:
        """Evaluate on the held-out tasks with sampled answers; return ``None`` if the run does without."""
        return await self.measure(name, greedy=False) if self.training.evaluate_sampled else None

    # ---------------------------------------------------------------------- an engine that gives up its calls
    async def hold(self) -> None:
        """Stop new calls of the policy before its engine; aborted ones are sent again."""
        await self.context.gateway.hold(self.policy)

    async def release(self) -> None:
        """Let calls of the policy pass again."""
        await self.context.gateway.release(self.policy)
