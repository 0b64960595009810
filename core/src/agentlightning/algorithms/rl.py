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
from types import MappingProxyType
from typing import Any

from agentlightning.algorithms.batching import group_rollouts, task_batches
from agentlightning.algorithms.context import Context
from agentlightning.algorithms.evaluate import NothingRewarded, reasons
from agentlightning.algorithms.quorum import Quorum, gather
from agentlightning.algorithms.work import begin
from agentlightning.credit.assign import assign, check_recipe
from agentlightning.credit.baselines import BASELINES
from agentlightning.credit.policies import part
from agentlightning.credit.rules import RULES
from agentlightning.credit.seals import seal, terms_digest
from agentlightning.credit.trainable import Versions, version_of
from agentlightning.plugins import Plugins
from agentlightning.types import Batch, Evaluation, Recipe, Record, Rollout, Seal, StepReport, UsageError
from agentlightning.types.failure import read_table
from agentlightning.types.select import caller


class RecipeRefused(UsageError, ValueError):
    """The driver would ignore something the recipe asks for."""


def refuse_ignored(
    recipe: Recipe, driver: str, honours: frozenset[str], why: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise if ``recipe`` uses a field that the driver does not implement: nothing is ignored in silence.
    ``why``: field → what else there is to say.
    """
    ignored = {k: v for k, v in recipe.uses().items() if k not in (honours | CORE_FIELDS) - why.keys()}
    if ignored:
        said = {k: f" ({why[k]})" if k in why else "" for k in ignored}
        listed = ", ".join(f"{k}={v!r}{said[k]}" for k, v in sorted(ignored.items()))
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
    "calls_frozen": "out/frozen-policy",
    "calls_trained": "calls_trained",
    "tokens_trained": "tokens_trained",
}
"""Sums over the run's steps → the metric that is summed."""


OF_EACH = ("rows", "calls", "calls_trained", "tokens_trained", "optimizer_steps", "skipped")
"""Metrics that are summed for each of several policies; ``skipped``: steps that changed nothing."""


BARREN_STEPS = 3
"""Steps in a row without a rewarded rollout after which a run ends with an error."""


FLAT = frozenset({"zero-spread", "group-of-one"})
"""Reasons for leaving calls out that say nothing against the run: there was just nothing to prefer."""


class NothingTrained(UsageError):
    """Rollouts are rewarded, but none of their calls can be trained: a wrong ``select``, or no calls."""


def _only_flat(batch: Batch) -> bool:
    """Whether all calls were left out because their groups were flat."""
    out = {reason for ledger in batch.ledgers for reason in ledger.out} - {"frozen-policy"}
    return bool(out) and out <= FLAT


def _why(records: Sequence[Record], batch: Batch) -> str:
    """Why no call was trained, and whom the calls came from."""
    reasons_out: Counter[str] = Counter()
    for ledger in batch.ledgers:
        reasons_out.update(ledger.out)
    if not reasons_out:
        return "the agent made no model call; is it using the endpoint it is given?"
    agents = sorted({caller(call.tags) for record in records for call in record.calls})
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
            **({"policies": job.policies} if job.policies else {}),
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
        self.totals: dict[str, Any] = {**dict.fromkeys(TOTALS, 0.0), "logprob_gap_max": None}
        """``logprob_gap_max``: ``None`` as long as no driver has measured it."""
        self._barren = 0
        self.policies: dict[str, dict[str, float]] = {}
        """Of a run with named policies: sums over the steps of each."""
        self._seals: dict[str, list[Seal]] = {}
        """Of the step under way, by policy."""
        self._versions: Versions = None
        """What its rows were built for."""
        self._metrics: dict[str, float] = {}
        """Of all of it, until they are in the totals."""
        self._silent: Counter[str] = Counter()
        """Policy → steps in a row without a row for it."""
        self._batches = task_batches(context.train, rl.batch_size, context.seed) if rl.steps else None
        self._restore(context.progress)

    # ----------------------------------------------------------------------------- what a checkpoint keeps
    def state(self) -> dict[str, Any]:
        """What goes into a checkpoint beside the driver's own: JSON. The order of the data is a function of
        seed and step; built-in rules and baselines keep nothing from step to step.
        """
        kept: dict[str, Any] = {"totals": self.totals, "barren": self._barren}
        return {**kept, "policies": self.policies, "silent": dict(self._silent)} if self.policies else kept

    def _restore(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`; the data go on behind the batches of the finished steps."""
        self.totals.update(state.get("totals", {}))
        self._barren = state.get("barren", 0)
        self.policies = state.get("policies", {})
        self._silent.update(state.get("silent", {}))
        if self._batches is not None:
            for _ in range(self.first_step):
                next(self._batches)

    # ------------------------------------------------------------------------------ task → rows (one step)
    async def collect(self, step: int) -> Batch:
        """Roll out this step's tasks and credit them.

        Tasks become groups of rollouts in the store; runners lease them; the gateway records their calls;
        when all are finished, credit turns calls and rewards into rows.
        """
        quorum = self.rl.quorum
        groups = self._groups(step, self.recipe.group_size + (quorum.hedge if quorum else 0))
        ids = await begin(self.context.store, [rollout for group in groups for rollout in group])
        gathered = await gather(self.context.store, groups, quorum, failure=self.rl.failure)
        records = await self.context.store.records(ids)
        self._versions = self.context.versions
        batch = assign(
            records,
            self.recipe,
            version=self._versions,
            rules={name: spec.rule for name, spec in self.context.plugins.credit_rules.items()},
            baselines={name: spec.baseline for name, spec in self.context.plugins.baselines.items()},
            failure=self.rl.failure,
        )
        if quorum:
            batch.metrics.update(gathered.metrics())
        self._metrics = batch.metrics
        self._seals = {
            name: seal(mine, records, run_id=self.run_id, step=step, policy=name, version=version)
            for name, version, mine in self._parts(batch)
        }
        self.context.plugins.moment("agl_rows_built", step=step, batch=batch)
        self._refuse_barren(step, batch, records)
        self._say_silent(batch)
        return batch

    def _groups(self, step: int, size: int) -> list[list[Rollout]]:
        """The rollouts of a step: ``size`` for each of its tasks."""
        assert self._batches is not None
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
        return [rollouts[i : i + size] for i in range(0, len(rollouts), size)]

    def _parts(self, batch: Batch) -> list[tuple[str, int | None, Batch]]:
        """Each policy, its version, and its part of a step."""
        if not isinstance(self._versions, Mapping):
            return [(self.policy, self._versions, batch)]
        return [(name, version, part(batch, name)) for name, version in self._versions.items()]

    def _refuse_barren(self, step: int, batch: Batch, records: list[Record]) -> None:
        """End a run that has stopped learning because nothing comes back: a dead engine, a broken agent."""
        learnable = batch.metrics.get("calls_trained") or _only_flat(batch)
        self._barren = 0 if learnable else self._barren + 1
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

    def _say_silent(self, batch: Batch) -> None:
        """Say of a policy that it gets nothing to train on, when that has become a habit."""
        for name, own in batch.policies.items():
            self._silent[name] = 0 if own["rows"] else self._silent[name] + 1
            if self._silent[name] == BARREN_STEPS:
                out = ", ".join(f"{n:g} × {k[4:]}" for k, n in own.items() if k.startswith("out/"))
                why = f"its calls were left out: {out}" if out else "no call went to it (see `policies`)"
                self.context.say(f"{BARREN_STEPS} steps in a row trained nothing of policy {name!r}: {why}")

    async def report(self, report: StepReport) -> None:
        """Make the step known: store (with the seals of what it trained), totals, moment hook (trackers
        listen there). Once for each policy.
        """
        report.version = version_of(self._versions, report.policy)
        if isinstance(self._versions, Mapping):
            report.versions = dict(self._versions)
        report.terms_digest = terms_digest(self.recipe, self.rl.failure)
        await self.context.store.add_step(report, self._seals[report.policy])
        self._count(report)
        self.context.plugins.moment("agl_policy_updated", report=report)

    def _count(self, report: StepReport) -> None:
        """Enter a step into the totals: what its policies share, once."""
        metrics, gap = report.metrics, report.metrics.get("logprob_gap_max")
        if isinstance(self._versions, Mapping):
            metrics, self._metrics = self._metrics, {}
            mine = self.policies.setdefault(report.policy, dict.fromkeys(OF_EACH, 0.0))
            for name in OF_EACH:
                mine[name] += report.metrics.get(name, 0.0)
        for total, metric in TOTALS.items():
            self.totals[total] += metrics.get(metric, 0.0)
        if gap is not None:
            self.totals["logprob_gap_max"] = max(self.totals["logprob_gap_max"] or 0.0, gap)

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
