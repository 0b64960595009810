"""Policy-gradient RL: evaluate, let a driver run the recipe, evaluate again.

The algorithm owns what every driver shares: which tasks a step rolls out, how their records become credited
rows, and when the policy is evaluated. The driver owns the loop and the gradient. Reading
:meth:`RLJob.collect` top to bottom is the path from a task to the rows of a step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.algorithms.batching import group_rollouts, task_batches
from agentlightning.algorithms.context import Context
from agentlightning.algorithms.evaluate import NothingRewarded, reasons
from agentlightning.algorithms.quorum import Quorum, gather
from agentlightning.algorithms.work import begin
from agentlightning.credit.assign import assign, check_recipe
from agentlightning.credit.baselines import BASELINES
from agentlightning.credit.rules import RULES
from agentlightning.credit.seals import seal, terms_digest
from agentlightning.plugins import Plugins
from agentlightning.types import Batch, Evaluation, Recipe, Record, Seal, StepReport, UsageError
from agentlightning.types.failure import read_table


class RecipeRefused(UsageError, ValueError):
    """The driver would ignore something the recipe asks for."""


def refuse_ignored(recipe: Recipe, driver: str, honours: frozenset[str]) -> None:
    """Raise if ``recipe`` uses a field that the driver does not implement: nothing is ignored in silence."""
    ignored = {k: v for k, v in recipe.uses().items() if k not in honours | CORE_FIELDS}
    if ignored:
        listed = ", ".join(f"{k}={v!r}" for k, v in sorted(ignored.items()))
        raise RecipeRefused(
            f"driver {driver!r} does not implement {listed} of recipe {recipe.name!r}; use another driver "
            "or drop it"
        )


def refuse_unusable(recipe: Recipe, plugins: Plugins) -> None:
    """Raise if credit cannot work with a value of ``recipe``, before anything is rolled out."""
    rules = {**RULES, **{name: spec.rule for name, spec in plugins.credit_rules.items()}}
    baselines = {**BASELINES, **{name: spec.baseline for name, spec in plugins.baselines.items()}}
    try:
        check_recipe(recipe, rules, baselines)
    except ValueError as error:
        raise RecipeRefused(str(error)) from None


CORE_FIELDS = frozenset(
    {
        "group_size", "credit", "gamma", "baseline", "group_by", "scale", "normalise", "constant",
        "drop_zero_spread", "merge", "staleness", "temperature",
    }
)  # fmt: skip
"""Recipe fields that core itself honours, whatever the driver: they end in the rows."""


TOTALS = {
    "rollouts": "rollouts",
    "rollouts_failed": "rollouts_failed",
    "calls": "calls",
    "calls_exact": "verdicts/exact",
    "calls_no_ids": "verdicts/no-ids",
    "calls_left_behind": "out/other-attempt",
    "calls_trained": "calls_trained",
    "tokens_trained": "tokens_trained",
}
"""Sums over the run's steps → the metric that is summed."""


BARREN_STEPS = 3
"""Steps in a row without a rewarded rollout after which a run ends with an error."""


FLAT = frozenset({"zero-spread", "group-of-one"})
"""Reasons for leaving calls out that say nothing against the run: there was just nothing to prefer."""


class NothingTrained(UsageError):
    """Rollouts are rewarded, but none of their calls can be trained: a wrong ``select``, or no calls."""


def _only_flat(batch: Batch) -> bool:
    """Whether all calls were left out because their groups were flat."""
    out = {reason for ledger in batch.ledgers for reason in ledger.out}
    return bool(out) and out <= FLAT


def _why(records: Sequence[Record], batch: Batch) -> str:
    """Why no call was trained, and whom the calls came from."""
    reasons_out: Counter[str] = Counter()
    for ledger in batch.ledgers:
        reasons_out.update(ledger.out)
    if not reasons_out:
        return "the agent made no model call; is it using the endpoint it is given?"
    agents = sorted({call.tags.get("agent", "without a name") for record in records for call in record.calls})
    listed = ", ".join(f"{n} × {reason}" for reason, n in reasons_out.most_common(3))
    return f"{listed}; calls came from {', '.join(agents)} (see `select`)"


class RL:
    """Trains with ``recipe``: ``steps`` steps of ``batch_size`` tasks."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        steps: int,
        batch_size: int = 8,
        evaluate_every: int = 0,
        headroom_tasks: int = 100,
        failure: Mapping[str, Any] | None = None,
        quorum: Quorum | None = None,
    ) -> None:
        if quorum is not None:
            quorum.size(recipe.group_size + quorum.hedge)
        if steps < 0 or batch_size < 1:
            raise ValueError(
                f"steps={steps} and batch_size={batch_size}: need steps >= 0 and batch_size >= 1"
            )
        self.recipe = recipe
        self.steps = steps
        self.batch_size = batch_size
        self.evaluate_every = evaluate_every
        self.headroom_tasks = headroom_tasks
        self.failure = read_table(failure)
        self.quorum = quorum

    async def run(self, context: Context) -> dict[str, Any]:
        """Evaluate, train, evaluate. The summary holds both evaluations and how long training took."""
        if context.driver is None:
            raise ValueError("RL needs a driver; name one with backend.driver")
        job = RLJob(context, self)
        before = await job.measure("before")
        sampled_before = await job.measure("before-sampled", greedy=False)
        await job.show_headroom(before)
        if job.first_step:  # an earlier life may have ended between its checkpoint and this evaluation
            await job.evaluate(job.first_step - 1)
        began = time.perf_counter()
        await context.driver.run(job)
        seconds = time.perf_counter() - began
        after = await job.measure("after")
        sampled_after = await job.measure("after-sampled", greedy=False)
        return {
            "recipe": self.recipe.model_dump(),
            "steps": self.steps,
            **_scores("before", before),
            **_scores("after", after),
            "sampled_before": sampled_before and sampled_before.reward,
            "sampled_after": sampled_after and sampled_after.reward,
            "eval_tasks": before.n if before else 0,
            "eval_failed": [before.failed, after.failed] if before and after else None,
            "train_seconds": round(seconds, 3),
            "headroom": job.headroom,
            "totals": job.totals,
        }


def _scores(when: str, evaluation: Evaluation | None) -> dict[str, Any]:
    """Reward and interval of an evaluation, under the summary's names."""
    return {
        f"reward_{when}": evaluation.reward if evaluation else None,
        f"ci_{when}": list(evaluation.ci) if evaluation and evaluation.ci else None,
    }


class RLJob:
    """One training run as the driver sees it (:class:`agentlightning.specs.Job`)."""

    def __init__(self, context: Context, rl: RL) -> None:
        self.context = context
        self.rl = rl
        self.run_id = context.run_id
        self.recipe = rl.recipe
        self.policy = context.policy
        self.steps = rl.steps
        self.first_step = context.first_step
        self.seed = context.seed
        self.folder: Path = context.folder
        self.headroom: dict[str, float] = {}
        self.totals: dict[str, float] = {**dict.fromkeys(TOTALS, 0.0), "logprob_gap_max": 0.0}
        self._barren = 0
        self._seals: list[Seal] = []
        """Of the step under way."""
        self._version: int | None = None
        """Policy version that its rows were built for."""
        self._batches = task_batches(context.train, rl.batch_size, context.seed) if rl.steps else None
        self._restore(context.progress)

    # ----------------------------------------------------------------------------- what a checkpoint keeps
    def state(self) -> dict[str, Any]:
        """What goes into a checkpoint beside the driver's own: JSON. The order of the data is a function of
        seed and step; built-in rules and baselines keep nothing from step to step.
        """
        return {"totals": self.totals, "barren": self._barren}

    def _restore(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`; the data go on behind the batches of the finished steps."""
        self.totals.update(state.get("totals", {}))
        self._barren = state.get("barren", 0)
        if self._batches is not None:
            for _ in range(self.first_step):
                next(self._batches)

    # ------------------------------------------------------------------------------ task → rows (one step)
    async def collect(self, step: int) -> Batch:
        """Roll out this step's tasks and credit them.

        Tasks become groups of rollouts in the store; runners lease them; the gateway records their calls;
        when all are finished, credit turns calls and rewards into rows.
        """
        assert self._batches is not None
        quorum = self.rl.quorum
        size = self.recipe.group_size + (quorum.hedge if quorum else 0)
        rollouts = group_rollouts(
            next(self._batches),
            size,
            run_id=self.run_id,
            name=f"train/{step}",
            seed=self.seed,
            mode="train",
            resources_id=self.context.resources[self.policy],
            config=self.context.config,
        )
        ids = await begin(self.context.store, rollouts)
        groups = [rollouts[i : i + size] for i in range(0, len(rollouts), size)]
        gathered = await gather(self.context.store, groups, quorum, failure=self.rl.failure)
        records = await self.context.store.records(ids)
        driver = self.context.driver
        version = self._version = driver.version if driver else None
        batch = assign(
            records,
            self.recipe,
            version=version,
            rules={name: spec.rule for name, spec in self.context.plugins.credit_rules.items()},
            baselines={name: spec.baseline for name, spec in self.context.plugins.baselines.items()},
            failure=self.rl.failure,
        )
        if quorum:
            batch.metrics.update(gathered.metrics())
        self._seals = seal(batch, records, run_id=self.run_id, step=step, policy=self.policy, version=version)
        self.context.plugins.moment("agl_rows_built", step=step, batch=batch)
        self._refuse_barren(step, batch, records)
        return batch

    def _refuse_barren(self, step: int, batch: Batch, records: list[Record]) -> None:
        """End a run that has stopped learning because nothing comes back: a dead engine, a broken agent."""
        learnable = batch.metrics.get("calls_trained") or _only_flat(batch)
        self._barren = 0 if batch.metrics.get("reward_count") and learnable else self._barren + 1
        if self._barren < BARREN_STEPS:
            return
        idle = batch.metrics.get("failed/no-call") == len(records)
        if batch.metrics.get("reward_count") or idle:
            raise NothingTrained(
                f"{BARREN_STEPS} steps in a row trained not one call: {_why(records, batch)}"
            )
        raise NothingRewarded(
            f"steps {step - BARREN_STEPS + 2} to {step + 1}: not one rollout got a reward; "
            f"in the last of them: {reasons(records)}"
        )

    async def report(self, report: StepReport) -> None:
        """Make the step known: store (with the seals of what it trained), totals, moment hook (trackers
        listen there).
        """
        report.version = self._version
        report.terms_digest = terms_digest(self.recipe, self.rl.failure)
        await self.context.store.add_step(report, self._seals)
        for total, metric in TOTALS.items():
            self.totals[total] += report.metrics.get(metric, 0.0)
        gap = report.metrics.get("logprob_gap_max", 0.0)
        self.totals["logprob_gap_max"] = max(self.totals["logprob_gap_max"], gap)
        self.context.plugins.moment("agl_policy_updated", report=report)

    async def saved(self, folder: Path, step: int) -> None:
        """Tell hooks of a checkpoint."""
        self.context.plugins.moment("agl_checkpoint_saved", folder=folder, step=step)

    # -------------------------------------------------------------------------------------- evaluation
    async def evaluate(self, step: int) -> Evaluation | None:
        """The evaluation that the schedule asks for after ``step``, if any."""
        every = self.rl.evaluate_every
        if not every or (step + 1) % every or step + 1 >= self.steps:
            return None
        return await self.measure(f"step-{step + 1}")

    async def measure(
        self, name: str, policy: str | None = None, limit: int | None = None, greedy: bool = True
    ) -> Evaluation | None:
        """Evaluation on the validation tasks; ``None`` without any."""
        tasks = self.context.val[:limit] if limit else self.context.val
        return await self.context.evaluate(tasks, name=name, policy=policy, greedy=greedy) if tasks else None

    async def show_headroom(self, before: Evaluation | None) -> None:
        """Say what there is to learn: present policy, scripted oracle, random. Under 15 points: little."""
        if before is None or not self.context.headroom:
            return
        self.headroom["policy"] = before.reward
        for name in self.context.headroom:
            if evaluation := await self.measure(name, policy=name, limit=self.rl.headroom_tasks):
                self.headroom[name] = evaluation.reward
        ceiling = self.headroom.get("oracle", 1.0)
        room = 100 * (ceiling - before.reward)
        scores = ", ".join(f"{name} {value:.3f}" for name, value in self.headroom.items())
        self.context.say(f"Headroom: {scores} → {room:.0f} points to gain")
        if room < 15:
            self.context.say("Under 15 points of headroom: this task will teach this policy nothing.")
