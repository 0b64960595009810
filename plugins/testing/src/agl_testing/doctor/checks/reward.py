"""Whether rewards differ enough to learn from, and how large groups must be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agentlightning.algorithms.evaluate import failure_reasons
from agentlightning.credit.assign import assign
from agentlightning.credit.groups import mean as average
from agentlightning.credit.rollout_reward import failure_of, rollout_reward
from agentlightning.store.base import Store
from agentlightning.store.sql.store import SQLStore
from agentlightning.terminal import plural
from agentlightning.types import Batch, Recipe, Record
from agentlightning.types.failure import DEFAULT_FAILURE_TABLE, FailureTable
from agl_testing.doctor import group_size
from agl_testing.doctor.checks.credit_fit import credits_differ, judge_fit
from agl_testing.doctor.figures import format_counts, format_number, percent
from agl_testing.doctor.findings import Findings, ProbeCost
from agl_testing.doctor.group_size import Suggestion
from agl_testing.doctor.memory import measure
from agl_testing.doctor.probe import concurrency, probe_tasks, reads_rewards, run_rollouts
from agl_testing.doctor.report import Check, Notes

FEW = 8
"""Fewer equal rewards than this are no evidence."""
LOW = 0.3
"""Share of groups with a signal below which most rollouts are wasted."""
LITTLE_HEADROOM = 0.15
"""Distance to the oracle below which a policy has little to learn."""
GROUPED = ("group", "rloo")
"""Baselines that compare the samples of one task; a group without spread teaches nothing."""
UNINFORMATIVE = frozenset({"zero-std", "group-of-one"})


class RewardJudgement(NamedTuple):
    """A check and the group size that it suggests."""

    check: Check
    suggestion: Suggestion | None


async def _stored_bytes(store: Store) -> int:
    """Return the size of the probe's own store."""
    assert isinstance(store, SQLStore)
    return (await store.writer.read(store.db.sizes))[0]


async def check_reward(findings: Findings) -> Check:
    """Run k tasks × n samples as training would, assign credit, and judge the spread of rewards."""
    configured, context = findings.require_configured(), findings.require_context()
    tasks, samples = probe_tasks(configured, findings.size.tasks), findings.samples
    before = await _stored_bytes(context.store)
    began = time.perf_counter()
    findings.records = await run_rollouts(findings, tasks, samples, name="reward")
    seconds = time.perf_counter() - began
    grown = await _stored_bytes(context.store) - before
    n = len(findings.records)
    findings.spent = ProbeCost(n, seconds, min(n, concurrency(findings)), grown)
    findings.usage.append(measure("reward probe"))
    findings.batch = credit(findings)
    if "oracle" in context.resources.compared:
        findings.oracle = await run_rollouts(findings, tasks, 1, name="oracle", policy="oracle")
    trainer = configured.trainer
    if not reads_rewards(trainer):
        return judge_unrewarded(trainer.recipe.credit, findings.records, findings.batch)
    judged = judge_reward(
        findings.records, findings.batch, trainer.recipe, findings.oracle, trainer.config.training.failure
    )
    if judged.suggestion is not None:
        findings.suggested_group_size = judged.suggestion.size
    return judged.check


def credit(findings: Findings) -> Batch:
    """Return the rows that training would make of the probe."""
    configured, context = findings.require_configured(), findings.require_context()
    return assign(
        findings.records,
        configured.trainer.recipe,
        version=context.versions,
        **context.plugins.credit_functions,
        failure=configured.trainer.config.training.failure,
    )


def judge_unrewarded(rule: str, records: Sequence[Record], batch: Batch) -> Check:
    """Judge a probe whose credit rule reads no reward: something must be there to train. Pure."""
    notes, trained = Notes(), int(batch.metrics.get("calls_trained", 0))
    if not trained:
        left = Counter[str]()
        for ledger in batch.ledgers:
            left.update(ledger.left_out)
        notes.fail(
            f"not one call of {plural(len(records), 'rollout')} can be trained: {format_counts(left)}",
            "Mend the agent, or choose its calls with agent.select.",
        )
    title = f"the credit rule {rule!r} reads no reward; {plural(trained, 'call')} can be trained"
    return notes.check("reward", title, rollouts=len(records), calls_trained=trained)


def judge_reward(
    records: Sequence[Record],
    batch: Batch,
    recipe: Recipe,
    oracle: Sequence[Record] = (),
    failure: FailureTable = DEFAULT_FAILURE_TABLE,
) -> RewardJudgement:
    """Judge training with ``recipe`` and the table ``failure`` from these rollouts. Pure."""
    notes = Notes()
    groups = list(rewards_by_task(records, failure).values())
    given = [reward for group in groups for reward in group]
    unfit = judge_fit(notes, records, batch, recipe)
    by_call = credits_differ(batch) and _spread(batch) > 0
    _pointless(notes, records, batch, given, unfit=unfit, by_call=by_call)
    failed = sum(failure_of(record) not in (None, "no-reward") for record in records)
    if 0 < failed < len(records):
        notes.warn(
            f"{failed} of {plural(len(records), 'rollout')} failed: {failure_reasons(records)}",
            "Mend the agent; failed rollouts are left out (unless training.failure gives them a reward), and "
            "their groups are smaller.",
        )
    suggestion, pointless = None, notes.status == "fail"
    if notes.status != "fail" and recipe.baseline in GROUPED and recipe.group_size < 2:
        notes.fail(
            f"training would be pointless: groups of {recipe.group_size} have no spread",
            "Set training.recipe.group_size to 4 or more, or baseline: none.",
        )
    if by_call:
        notes.fact("calls have credits of their own: a group can teach though its rollouts did equally well")
    elif not pointless and recipe.baseline in GROUPED:
        suggestion = _group_size(notes, groups, recipe)
    mean = average(given) if given else None
    if mean is not None:
        _headroom(notes, mean, oracle)
    spread = _spread(batch) if by_call else 1.0 - group_size.zero_variance_share(groups)
    title = (
        f"mean {format_number(mean)} over {plural(len(given), 'rollout')} of {plural(len(groups), 'task')}; "
        f"{percent(spread)} of the groups have a spread"
        if mean is not None
        else ""
    )
    data = {
        "reward_mean": mean, "groups": groups, "groups_with_spread": spread, "rollouts": len(records),
        "failed": failed, "calls_trained": batch.metrics.get("calls_trained", 0.0),
        "informative": suggestion and suggestion.informative,
        "informative_now": group_size.informative(groups, recipe.group_size) if groups else None,
    }  # fmt: skip
    return RewardJudgement(notes.check("reward", title, **data), suggestion)


def rewards_by_task(
    records: Sequence[Record], failure: FailureTable = DEFAULT_FAILURE_TABLE
) -> dict[str, list[float]]:
    """Return group → rewards of its rollouts.

    A failure's reward comes from the failure table. Any other rollout counts with its final reward, or the
    mean of its narrower ones. Rollouts without a call to train do not move the baseline and are left out.
    """
    found: dict[str, list[float]] = {}
    for record in records:
        group = found.setdefault(record.rollout.group_id or record.rollout.rollout_id, [])
        earned = rollout_reward(record, failure)
        if earned.value is not None and (earned.failure is None or record.calls):
            group.append(earned.value)
    return {name: group for name, group in found.items() if group}


def _pointless(
    notes: Notes,
    records: Sequence[Record],
    batch: Batch,
    given: Sequence[float],
    *,
    unfit: bool,
    by_call: bool,
) -> None:
    """Report reasons for which training would be pointless.

    ``unfit``: missing credit was reported already. ``by_call``: calls of rollouts with equal rewards may
    differ in credit.
    """
    if not given:
        notes.fail(
            f"training would be pointless: not one of {plural(len(records), 'rollout')} got a reward: "
            f"{failure_reasons(records)}",
            "Mend the agent, or emit a reward in it.",
        )
        return
    if not batch.metrics.get("calls_trained") and not _only_zero_variance(batch) and not unfit:
        out = sum((Counter(ledger.left_out) for ledger in batch.ledgers), Counter[str]())
        notes.fail(
            f"training would be pointless: no call can be trained ({format_counts(out) or 'no calls'})",
            "See `capture` above for the reasons, and agent.select for who is trained.",
        )
    if len(set(given)) == 1 and not (by_call or unfit):
        hopeless, advice = _constant_reward(given[0])
        if len(given) < FEW:
            notes.warn(f"all {len(given)} rewards are {given[0]:g}, but they are few", "Probe more --tasks.")
        else:
            notes.fail(
                f"training would be pointless: all {len(given)} rewards are {given[0]:g}{hopeless}", advice
            )


def _spread(batch: Batch) -> float:
    """Return the share of groups, as credit compares them, with any difference."""
    groups = batch.metrics.get("groups", 0.0)
    flat = batch.metrics.get("groups_zero_std", 0.0) + batch.metrics.get("groups_of_one", 0.0)
    return 1.0 - flat / groups if groups else 0.0


def _only_zero_variance(batch: Batch) -> bool:
    out = {reason for ledger in batch.ledgers for reason in ledger.left_out}
    return bool(out) and out <= UNINFORMATIVE


def _constant_reward(value: float) -> tuple[str, str]:
    """Return the meaning of a constant reward, and advice."""
    if value > 0:
        return (
            ": there is nothing left to learn",
            "Take harder tasks, or a reward that tells good from better.",
        )
    return ": the policy never succeeds", (
        "Take easier tasks, a better starting policy, or a reward for partial success; check the grading "
        "with an answer that you know is right."
    )


def _group_size(notes: Notes, groups: Sequence[Sequence[float]], recipe: Recipe) -> Suggestion:
    """Report whether the recipe's groups are large enough, and the size that would be."""
    best = group_size.suggest(groups, min(64, max(16, 4 * recipe.group_size)))
    now = group_size.informative(groups, recipe.group_size)
    sizes = sorted({2, 4, 8, 16, recipe.group_size, best.size})
    shares = ", ".join(f"{n}: {percent(group_size.informative(groups, n))}" for n in sizes)
    notes.fact(f"groups that carry a signal, expected by size: {shares}")
    if best.why == "knee":
        notes.fact(
            f"twice {best.size} would add less than a fifth: the other tasks are out of reach, or done"
        )
    if best.informative < LOW:
        notes.warn(
            f"groups of {best.size} would carry a signal for only {percent(best.informative)} of the tasks",
            "Most tasks are too easy or too hard for this policy: choose tasks nearer to its reach.",
        )
    elif recipe.group_size < best.size and now < group_size.TARGET:
        notes.warn(
            f"groups of {recipe.group_size} carry a signal for {percent(now)} of the tasks",
            f"Set training.recipe.group_size to {best.size} ({percent(best.informative)}).",
        )
    elif 2 * best.size <= recipe.group_size:
        notes.fact(f"a group size of {best.size} would do ({percent(best.informative)}), and cost less")
    return best


def _headroom(notes: Notes, mean: float, oracle: Sequence[Record]) -> None:
    """Report the distance to the oracle on the same tasks."""
    best = [reward for group in rewards_by_task(oracle).values() for reward in group]
    if not best:
        if oracle:
            notes.warn(
                f"the oracle got no reward: {failure_reasons(oracle)}", "Mend environment.headroom.oracle."
            )
        return
    ceiling = average(best)
    notes.fact(f"oracle {ceiling:.3f} on the same tasks: {100 * (ceiling - mean):.0f} points to gain")
    if ceiling - mean < LITTLE_HEADROOM:
        notes.warn(
            f"only {100 * (ceiling - mean):.0f} points to the oracle",
            "Take harder tasks: these will teach this policy little.",
        )
