"""Measure updates on the probe's rows and the machine's free memory and disk, for the forecast."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from agentlightning.algorithms.evaluations import read_sets
from agentlightning.types import Batch, Evaluation, Progress, StepReport
from agl_testing.doctor.checks.configuration import folder_bytes
from agl_testing.doctor.checks.environment import available_memory, nearest_existing
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.forecast import ProbeMeasurements, Workload, judge_forecast, predict
from agl_testing.doctor.memory import measure
from agl_testing.doctor.report import Check

SLOW = 30.0
"""An update that took longer, in seconds, is not repeated."""


async def check_forecast(findings: Findings) -> Check:
    """Scale the probe to the run. Without ``--quick`` the driver updates on the probe's rows, in memory."""
    trainer, context = findings.require_configured().trainer, findings.require_context()
    assert findings.spent is not None and findings.batch is not None and context.driver is not None
    job = Rehearsal(findings, findings.batch)
    if not findings.size.quick:
        await context.guard(context.driver.run(job))
        findings.usage.append(measure("updates"))
    spent, seconds = findings.spent, job.seconds if job.reports else {}
    options = trainer.config.backend.options
    seen = ProbeMeasurements(
        rollouts=spent.rollouts,
        seconds=spent.seconds,
        tokens=findings.batch.metrics.get("tokens", 0.0),
        bytes=spent.bytes,
        start=findings.start_seconds,
        update=seconds.get("update"),
        sync=seconds.get("sync", 0.0),
    )
    forecast = predict(
        workload(findings),
        seen,
        policy_bytes=sum(folder_bytes(Path(one.path)) for one in trainer.config.served.trained.values()),
        checkpoints=int(options.get("keep_checkpoints", options.get("keep", 2)))
        if options.get("save_every")
        else 0,
    )
    check = judge_forecast(
        forecast,
        steps=trainer.config.training.steps,
        usage=findings.usage,
        free_disk=shutil.disk_usage(nearest_existing(Path(trainer.config.output).absolute())).free,
        free_memory=available_memory(),
        gap=job.gap if job.reports else None,
    )
    findings.forecast = check.data
    return check


def workload(findings: Findings) -> Workload:
    """Return the rollouts of the configured run."""
    configured = findings.require_configured()
    trainer, held_out = configured.trainer, len(configured.val)
    training = trainer.config.training
    environment = trainer.config.environment
    scripted = getattr(environment, "headroom", {})  # the run's own plugins may lack agl-testing
    return Workload(
        steps=training.steps,
        rollouts=training.batch_size * trainer.recipe.group_size,
        held_out=held_out,
        in_sets=sum(map(len, read_sets(trainer.config.evaluation.sets, trainer.plugins).values())),
        evaluate_every=training.evaluate_every,
        evaluate_sampled=training.evaluate_sampled,
        scripted=len(scripted) * min(getattr(environment, "headroom_tasks", 0), held_out),
        async_steps=training.async_steps,
        dynamic_sampling=getattr(training, "dynamic_sampling", 0),  # of agl-schedules
    )


class Rehearsal:
    """A job of two steps over given rows (:class:`agentlightning.specs.Job`).

    The first step includes one-time costs (libraries, buffers, optimizer state); the second is the
    measurement. If the first took long, the second uses the rows of one rollout.
    """

    def __init__(self, findings: Findings, batch: Batch) -> None:
        context = findings.require_context()
        self.run_id = context.run_id
        self.recipe = findings.require_configured().trainer.recipe
        self.policy = context.policy
        self.steps = 2
        self.first_step = 0
        self.seed = context.seed
        self.folder: Path = findings.scratch / "job"
        self.alone = True
        self.batch = batch
        self.reports: list[StepReport] = []

    @property
    def seconds(self) -> dict[str, float]:
        """Return phase → seconds of the representative step, summed over its policies."""
        step = self.reports[0 if self._slow() else -1].step
        return self._spent(step)

    def _spent(self, step: int) -> dict[str, float]:
        spent: Counter[str] = Counter()
        for report in self.reports:
            if report.step == step:
                spent.update(report.seconds)
        return dict(spent)

    @property
    def gap(self) -> float | None:
        """Return the largest difference between a stored logprob and the trainer's own, before training."""
        gaps = [
            r.metrics["logprob_gap_max"]
            for r in self.reports
            if r.step == 0 and "logprob_gap_max" in r.metrics
        ]
        return max(gaps, default=None)

    async def collect(self, step: int) -> Batch:
        """Return the probe's rows."""
        if not step or not self._slow():
            return self.batch
        first = self.batch.rows[0].rollout_id
        rows = [row for row in self.batch.rows if row.rollout_id == first]
        return Batch(rows=rows, policies=self.batch.policies)

    def _slow(self) -> bool:
        return self._spent(0).get("update", 0.0) > SLOW

    def progress(self, progress: Progress) -> None:
        """Show nothing."""

    async def report(self, report: StepReport) -> None:
        """Keep the measurements of the step."""
        self.reports.append(report)

    async def evaluate(self, step: int) -> Evaluation | None:
        """Skip evaluation."""
        return None

    def state(self) -> dict[str, Any]:
        """Skip saving."""
        return {}

    async def saved(self, folder: Path, step: int) -> None:
        """Return a checkpoint folder inside the temporary folder."""

    async def hold(self) -> None:
        """There are no calls to hold."""

    async def release(self) -> None:
        """There are no calls to release."""
