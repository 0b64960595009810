"""Policy-gradient RL: evaluate, let a driver run the recipe, evaluate again.

The algorithm does what all drivers share: it asks the run's schedule for the credited groups of a step, keeps
the record of it, and makes the evaluations. The driver runs the loop and computes the gradient.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.counters import NoSignalGuard, Totals, nothing_learned
from agentlightning.algorithms.crediting import StepCrediting
from agentlightning.algorithms.evaluations import NamedSets, scores
from agentlightning.algorithms.schedule import InOrder, Schedule, Watch, schedule_of
from agentlightning.credit.accounts import policy_batch
from agentlightning.credit.assign import StepCredit
from agentlightning.credit.eligibility import Versions, version_of
from agentlightning.credit.fingerprint import add_rows, terms_digest
from agentlightning.types import Batch, Evaluation, Progress, Recipe, RolloutFingerprint, StepReport
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import TrainingSection


class RL:
    """Trains with ``recipe`` as ``training`` says: steps, batch size, failure table and schedule."""

    def __init__(self, recipe: Recipe, training: TrainingSection) -> None:
        self.recipe = recipe
        self.training = training

    async def run(self, context: Context) -> dict[str, Any]:
        """Evaluate, train, evaluate; return both evaluations and the seconds of training for the summary."""
        if context.driver is None:
            raise ValueError("RL needs a driver; name one with backend.driver")
        job = await self.make_job(context)
        before = await job.look("before", None if job.first_step else 0)
        sampled_before = await job.measure_sampled("before-sampled")
        for guard in context.guards:
            guard.keep_back()
        compared = {one.name: await one.measure(context, before) for one in context.comparisons}
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
            **scores("before", before),
            **scores("after", after),
            **job.sets.summary(),
            "sampled_before": sampled_before and sampled_before.reward,
            "sampled_after": sampled_after and sampled_after.reward,
            "eval_tasks": before.n if before else 0,
            "eval_failed": [before.failed, after.failed] if before and after else None,
            "eval_left_out": [before.left_out, after.left_out] if before and after else None,
            "train_seconds": round(seconds + context.earlier.get("train_seconds", 0.0), 3),
            **compared,
            "learned": job.learned,
            "totals": job.totals.values,
            **({"policies": job.totals.policies} if job.totals.policies else {}),
            **job.schedule.summary(job.steps),
            **(job.watch.summary() if job.watch else {}),
        }

    async def make_job(self, context: Context) -> RLJob:
        """Return the run as the driver gets it."""
        return RLJob(context, self)


class RLJob:
    """A training run, as the driver gets it (:class:`agentlightning.specs.Job`)."""

    alone = True

    def __init__(self, context: Context, rl: RL, schedule: Schedule | None = None) -> None:
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
        self.totals = Totals()
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
        spec = schedule_of(context.plugins, rl.recipe, training)
        if schedule is not None and spec.chooses_by:
            raise ConfigError(
                f"training.{spec.chooses_by[0]}: {rl.recipe.name!r} chooses itself what its steps train; "
                "drop it"
            )
        if schedule is None:
            schedule = spec.open(context) if spec.open else InOrder(context, rl.recipe, training)
        self.schedule: Schedule = schedule
        self.watch: Watch | None = spec.watch(context) if spec.watch else None
        self.totals.restore(context.progress)
        self._no_signal.restore(context.progress)

    # ----------------------------------------------------------------------------- what a checkpoint keeps
    def state(self) -> dict[str, Any]:
        """Return the job's part of a checkpoint, as JSON. Built-in rules and baselines have no state."""
        return {**self.totals.state(), **self._no_signal.state(), **self.schedule.state()}

    # ------------------------------------------------------------------------------ task → rows (one step)
    async def collect(self, step: int) -> Batch:
        """Roll out this step's tasks and credit them.

        Tasks become groups of rollouts in the store; runners lease them; the gateway records their calls;
        when all are finished, credit turns calls and rewards into rows. With ``async_steps``, rollouts of
        later steps run meanwhile and afterwards.
        """
        credit = self._crediting(step)
        batch = await self.schedule.collect(step, credit)
        for one in self.context.edits:
            batch = await one.edit(step, batch)
        for guard in self.context.guards:
            batch.metrics.update(guard.metrics())
        self._reason = credit.reason
        await self._record_step(step, batch, credit.fingerprints)
        return batch

    def _crediting(self, step: int) -> StepCrediting:
        """Return what credits a step's rollouts, for the versions served now."""
        self._versions = self.context.versions
        failure, functions = self.training.failure, self.context.plugins.credit_functions
        make = partial(StepCredit, self.recipe, version=self._versions, failure=failure, **functions)
        read = self.context.records
        return StepCrediting(self.context.store, make, run_id=self.run_id, step=step, read=read)

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
        self.context.plugins.ask("agl_rows_built", step=step, batch=batch)
        # Only a step without a signal is described by its records, which are read again for that.
        silent = [] if self._no_signal.learnable(batch) else list(fingerprints)
        self._no_signal.step(step, batch, await self.context.store.records(silent))

    def _by_policy(self, batch: Batch) -> list[tuple[str, int | None, Batch]]:
        """Return each policy, its version, and its batch of the step."""
        if not isinstance(self._versions, Mapping):
            return [(self.policy, self._versions, batch)]
        return [(name, version, policy_batch(batch, name)) for name, version in self._versions.items()]

    async def end(self) -> None:
        """Cancel the rollouts that will not be trained. A run that has finished its steps has none."""
        if n := await self.schedule.end():
            self.context.say(f"{n} rollouts were under way and are cancelled: they would not be trained")

    def progress(self, progress: Progress) -> None:
        """Notify hooks of how far a long piece of work is."""
        self.context.plugins.ask("agl_progress", progress=progress)

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
        self.totals.count(report, multi_policy=isinstance(self._versions, Mapping))
        self.context.plugins.ask("agl_policy_updated", report=report)
        if guarded := self.context.guarded():  # what the step itself has cost is in it
            await self.context.store.update_run(self.run_id, guarded)

    @property
    def learned(self) -> bool | None:
        """Whether any token was trained; ``None`` for a run without steps."""
        return bool(self.totals.values["tokens_trained"]) if self.steps else None

    def say_if_nothing_learned(self) -> None:
        """Print at the end that the run left the policy as it was."""
        if self.learned is False:
            idle, flat = self.totals.values["tokens_zero_advantage"], self._no_signal.zero_variance_steps > 0
            self.context.say(nothing_learned(self.steps, idle, flat, self._no_signal.left_out))

    async def saved(self, folder: Path, step: int) -> None:
        """Add a checkpoint to the run's chain and notify hooks."""
        await self.context.journal.checkpoint(folder)
        self.context.plugins.ask("agl_checkpoint_saved", folder=folder, step=step)

    # -------------------------------------------------------------------------------------- evaluation
    async def evaluate(self, step: int) -> Evaluation | None:
        """Make and return the evaluation that is due after ``step``, if any."""
        await self.end_if_exhausted(step + 1)
        every = self.training.evaluate_every
        if not every or (step + 1) % every or step + 1 >= self.steps:
            return None
        evaluation = await self.look(f"step-{step + 1}", step + 1)
        if evaluation is not None or self.context.sets:
            reasons = self.context.plugins.ask(
                "agl_end_training",
                step=step + 1,
                evaluation=evaluation,
                evaluations=self.context.evaluations.finished(),
                training=self.training,
            )
            if reasons:
                self._end_after(step + 1, "; ".join(map(str, reasons)))
        return evaluation

    async def look(self, when: str, step: int | None) -> Evaluation | None:
        """Evaluate on the held-out tasks and on each named set, and show it to who watches: the policy of
        ``step`` finished steps.
        """
        found, sets = await self.measure(when), await self.sets.measure(when)
        if self.watch is not None and step is not None:
            await self.watch.evaluated(step, {**({"": found} if found else {}), **sets})
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

    async def end_if_exhausted(self, step: int) -> None:
        """End training after ``step`` finished steps if no call is admitted any more."""
        if (why := await self.context.exhausted()) is not None:
            self._end_after(step, f"stopped by {why}")

    def _end_after(self, step: int, why: str) -> None:
        """End training after ``step`` finished steps."""
        self.ended, self.steps = why, step
        self.context.say(f"training ends after step {step} of {self.training.steps}: {why}")

    async def measure(self, name: str, greedy: bool = True) -> Evaluation | None:
        """Evaluate on the held-out tasks; return ``None`` without any."""
        tasks = self.context.val
        return await self.context.evaluate(tasks, name=name, greedy=greedy) if tasks else None

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
