"""The accounts of a step's rollouts: the ledger of every call, and the metrics of the batch.

Invariant of a ledger: ``made == trained + sum(left_out.values())``. A call that is not trained is counted
under exactly one reason.

A metric without anything to measure is absent, not 0. The rollouts of a step, their rewards and their ledgers
belong to all policies alike; calls, groups, rows and tokens belong to the policy that made them. Invariant:
each row of a batch is in exactly one policy's part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentlightning.credit.baselines import Advantages
from agentlightning.credit.eligibility import MISMATCH_BY_AGENT
from agentlightning.credit.forest import Forest
from agentlightning.credit.groups import CreditedCall, grouped, mean, std
from agentlightning.credit.rewards import BY_AGENT, Rewards
from agentlightning.types import AttemptStatus, Batch, EarlierAttempt, Ledger, Recipe, Rollout, Row
from agentlightning.types.failure import failure_kind_of_end


@dataclass(slots=True)
class RolloutAccount:
    """One rollout during credit assignment: numbers and names, without the tokens of its record."""

    rollout: Rollout
    ledger: Ledger
    failure: str | None
    """Kind of its failure."""
    rewards: Rewards | None = None
    """Its rewards, or the one that the failure table gives its failure; ``None``: it failed without one."""
    earlier: list[EarlierAttempt] = field(default_factory=list)
    policies: dict[str, str] = field(default_factory=dict)
    """Call id → policy, of all its calls."""
    out: dict[str, str] = field(default_factory=dict)
    """Call id → why the call is not trained."""
    weighed: frozenset[str] = frozenset()
    """Ids of the calls that are trained, if at all, by importance weights."""
    credited: list[CreditedCall] = field(default_factory=list)


def close_ledger(account: RolloutAccount, forest: Forest, weighed: Collection[str] = ()) -> None:
    """Enter the trained calls, and the reasons of the other calls. ``weighed``: ids of the trained calls that
    were sampled otherwise than the run's policy.

    ``AssertionError`` if a call is neither: that is a fault of this package, never of its input.
    """
    ledger = account.ledger
    for reason, n in sorted(Counter(account.out.values()).items()):
        ledger.left_out[reason] = ledger.left_out.get(reason, 0) + n
    ledger.trained = sum(len(path.own) for path in forest.paths)
    ledger.off_policy = len(weighed)
    ledger.merged = ledger.trained - len(forest.paths)
    ledger.merge_failures = dict(sorted(forest.merge_failures.items()))
    if not ledger.sums:
        raise AssertionError(f"the ledger of rollout {ledger.rollout_id!r} does not sum: {ledger}")


def batch_metrics(
    accounts: Sequence[RolloutAccount], groups: Advantages, rows: Sequence[Row], recipe: Recipe
) -> dict[str, float]:
    """Return all metrics of a step's credit.

    ``reward_mean`` and ``reward_std`` (the sample standard deviation) are over the outcomes of the rollouts
    that have a reward: the final reward, or where none was emitted the mean of the calls' and agents'
    rewards. ``retried/<kind>`` counts attempts that were followed by another one.
    """
    failures = Counter(account.failure for account in accounts if account.failure is not None)
    retried = Counter(_failure_kind(attempt) for account in accounts for attempt in account.earlier)
    return {
        "rollouts": len(accounts),
        "rollouts_failed": failures.total() - failures["no-reward"],
        "rollouts_no_reward": failures["no-reward"],
        **_counts_under("failed", failures),
        **_counts_under("retried", retried),
        **groups.counts(),
        **_rewards([account.rewards for account in accounts if account.rewards is not None]),
        **_calls([account.ledger for account in accounts]),
        **row_metrics(rows, recipe),
    }


def policy_metrics(
    policy: str,
    accounts: Sequence[RolloutAccount],
    groups: Advantages,
    rows: Sequence[Row],
    recipe: Recipe,
) -> dict[str, float]:
    """Return a policy's own metrics of a step.

    ``credit_mean``: mean over rollouts of the mean credit of the policy's calls, which its baseline
    compares; absent if no call was credited. ``credit_count``: number of these rollouts.
    """
    reasons = [a.out.get(call) for a in accounts for call, name in a.policies.items() if name == policy]
    mine = [row for row in rows if row.policy == policy]
    trained = sum(segment.trained for row in mine for segment in row.segments)
    credited = [one for a in accounts for one in a.credited if one.policy == policy]
    rollouts = grouped(credited, lambda one: one.rollout_id).values()
    found: dict[str, float] = {
        "calls": len(reasons),
        "calls_trained": trained,
        "merged": trained - len(mine),
        **groups.counts(one.call_id for one in credited),
        "credit_count": len(rollouts),
        **_counts_under("left_out", Counter(filter(None, reasons))),
        **row_metrics(mine, recipe),
    }
    if rollouts:
        found["credit_mean"] = mean([mean([one.credit for one in own]) for own in rollouts])
    return found


def policy_batch(batch: Batch, policy: str) -> Batch:
    """Return the batch for the driver of ``policy``: its rows, its own metrics, and the shared metrics."""
    rows = [row for row in batch.rows if row.policy == policy]
    own = {name for metrics in batch.policies.values() for name in metrics}
    shared = {
        name: value
        for name, value in batch.metrics.items()
        if name not in own and not name.startswith("left_out/")
    }
    return Batch(rows=rows, ledgers=batch.ledgers, metrics={**shared, **batch.policies.get(policy, {})})


def _counts_under(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Counts as metrics: ``<prefix>/<name>``, sorted by name."""
    return {f"{prefix}/{name}": n for name, n in sorted(counts.items())}


def _failure_kind(attempt: EarlierAttempt) -> str:
    """The kind of an attempt's failure; ``succeeded`` if a resumed run rolled it out again."""
    succeeded = attempt.status == AttemptStatus.SUCCEEDED
    return str(attempt.status) if succeeded else failure_kind_of_end(attempt.status, attempt.reason)


def _rewards(rewards: Sequence[Rewards]) -> dict[str, float]:
    outcomes = [outcome for r in rewards if (outcome := r.outcome) is not None]
    out: dict[str, float] = {"reward_count": len(outcomes)}
    if outcomes:
        out["reward_mean"] = mean(outcomes)
    if len(outcomes) > 1:
        out["reward_std"] = std(outcomes)
    for name in sorted({name for r in rewards for name in r.by_name}):
        out[f"reward/{name}"] = mean([r.by_name[name] for r in rewards if name in r.by_name])
    return {**out, **_counts_under("reward_unused", _sum(r.missing for r in rewards))}


def _calls(ledgers: Sequence[Ledger]) -> dict[str, float]:
    verdicts = _sum(ledger.verdicts for ledger in ledgers)
    out: dict[str, float] = {
        "calls": sum(ledger.made for ledger in ledgers),
        "calls_recorded": sum(ledger.recorded for ledger in ledgers),
        "calls_trained": sum(ledger.trained for ledger in ledgers),
        "merged": sum(ledger.merged for ledger in ledgers),
        **_counts_under("left_out", _sum(ledger.left_out for ledger in ledgers)),
        **_counts_under("merge_failures", _sum(ledger.merge_failures for ledger in ledgers)),
        **_counts_under("verdicts", verdicts),
    }
    if disputed := sum(ledger.disputed for ledger in ledgers):
        out["calls_disputed"] = disputed
    return {**out, "exact": verdicts["exact"] / verdicts.total()} if verdicts else out


def _sum(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Add up counts."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def agents_word(metrics: Mapping[str, float]) -> str:
    """Return what agents said about themselves that did not agree with the gateway or a judge, as a warning
    (``docs/rewards.md``); an empty text if there is nothing. ``metrics``: of a step's batch.
    """
    said = []
    if left := metrics.get(f"left_out/{MISMATCH_BY_AGENT}"):
        said.append(f"{left:.0f} calls are left out because spans of their agent contradict the gateway")
    if trained := metrics.get("calls_disputed", 0.0) - (left or 0.0):
        said.append(
            f"{trained:.0f} calls are trained although their agent, which is not trusted, disputes them"
        )
    if ignored := metrics.get(f"reward_unused/{BY_AGENT}"):
        said.append(
            f"{ignored:.0f} rewards do not count: agents without trust gave them to themselves beside a judge"
        )
    return f"WARNING: {'; '.join(said)} (agent.trusted)" if said else ""


def row_metrics(rows: Sequence[Row], recipe: Recipe) -> dict[str, float]:
    """Counts of rows and tokens, age of tokens, size of advantages.

    Tokens of a row without an advantage are not trained unless another term of the loss reaches them.
    """
    trained = [segment for row in rows for segment in row.segments if segment.trained]
    all_trained = sum(row.trained_tokens for row in rows)
    idle = sum(row.trained_tokens for row in rows if not _has_gradient(row, recipe))
    out: dict[str, float] = {
        "rows": len(rows),
        "tokens": sum(len(row.token_ids) for row in rows),
        "tokens_trained": all_trained - idle,
        "tokens_zero_advantage": idle,
        "tokens_version_unknown": all_trained - sum(sum(_versions(row).values()) for row in rows),
    }
    ages = sum((_ages(row) for row in rows), Counter[int]())
    if ages:
        out["staleness_mean"] = sum(age * n for age, n in ages.items()) / ages.total()
        out["staleness_max"] = max(ages)
    if weighed := [segment for segment in trained if segment.off_policy]:
        out["off_policy/calls"] = len(weighed)
        out["off_policy/tokens"] = sum(segment.end - segment.start for segment in weighed)
    if trained:
        out["advantage_abs_mean"] = mean([abs(segment.advantage) for segment in trained])
    return out


def _has_gradient(row: Row, recipe: Recipe) -> bool:
    """Whether the loss has a gradient in the row's tokens."""
    every = recipe.kl or recipe.entropy or recipe.critic
    return bool(every) or any(s.trained and s.advantage for s in row.segments)


def _ages(row: Row) -> Counter[int]:
    """Age in versions → trained tokens of that age, for tokens with a known version."""
    if "staleness" not in row.metadata:
        return Counter()
    versions = _versions(row)
    trained = row.metadata["staleness"] + min(versions)
    return Counter({trained - version: n for version, n in versions.items()})


def _versions(row: Row) -> Counter[int]:
    """Known version → trained tokens of that version."""
    found: Counter[int] = Counter()
    for segment in row.segments:
        if segment.trained:
            found.update(row.versions[segment.start : segment.end])
    del found[-1]
    return found
