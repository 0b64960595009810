"""Metrics of a batch. A metric without anything to measure is absent, not 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentlightning.credit.advantage.baselines import Advantages
from agentlightning.credit.advantage.spread import mean, std
from agentlightning.credit.scoring.rewards import Rewards
from agentlightning.types import AttemptStatus, EarlierAttempt, Ledger, Recipe, Row
from agentlightning.types.failure import failure_kind_of_end


def batch_metrics(
    rewards: Sequence[Rewards],
    failures: Sequence[str],
    ledgers: Sequence[Ledger],
    groups: Advantages,
    rows: Sequence[Row],
    recipe: Recipe,
    earlier: Sequence[EarlierAttempt] = (),
) -> dict[str, float]:
    """All metrics of a step's credit.

    ``rewards``: of the rollouts that count. ``failures``: kind of each rollout that failed. ``earlier``:
    attempts after which there was another, counted as ``retried/<kind>``. ``reward_mean`` and ``reward_std``
    (the sample standard deviation) are over the rollouts' outcomes: the final reward, or where none was
    emitted the mean of the calls' and agents' rewards.
    """
    retried = Counter(_failure_kind(attempt) for attempt in earlier)
    out: dict[str, float] = {
        "rollouts": len(ledgers),
        "rollouts_failed": sum(kind != "no-reward" for kind in failures),
        "rollouts_no_reward": sum(kind == "no-reward" for kind in failures),
        **{f"failed/{kind}": n for kind, n in sorted(Counter(failures).items())},
        **{f"retried/{kind}": n for kind, n in sorted(retried.items())},
        "groups": groups.groups,
        "groups_zero_std": groups.groups_zero_std,
        "groups_of_one": groups.groups_of_one,
        "calls_unpaired": groups.calls_unpaired,
    }
    return {**out, **_rewards(rewards), **_calls(ledgers), **row_metrics(rows, recipe)}


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
    missing = sum((Counter(r.missing) for r in rewards), Counter[str]())
    return {**out, **{f"reward_unused/{reason}": n for reason, n in sorted(missing.items())}}


def _calls(ledgers: Sequence[Ledger]) -> dict[str, float]:
    lost = sum((Counter(ledger.left_out) for ledger in ledgers), Counter[str]())
    breaks = sum((Counter(ledger.merge_failures) for ledger in ledgers), Counter[str]())
    kinds = sum((Counter(ledger.verdicts) for ledger in ledgers), Counter[str]())
    judged = sum(kinds.values())
    out: dict[str, float] = {
        "calls": sum(ledger.made for ledger in ledgers),
        "calls_recorded": sum(ledger.recorded for ledger in ledgers),
        "calls_trained": sum(ledger.trained for ledger in ledgers),
        "merged": sum(ledger.merged for ledger in ledgers),
        **{f"left_out/{reason}": n for reason, n in sorted(lost.items())},
        **{f"merge_failures/{reason}": n for reason, n in sorted(breaks.items())},
        **{f"verdicts/{kind}": n for kind, n in sorted(kinds.items())},
    }
    return {**out, "exact": kinds["exact"] / judged} if judged else out


def row_metrics(rows: Sequence[Row], recipe: Recipe) -> dict[str, float]:
    """Counts of rows and tokens, age of tokens, size of advantages.

    Tokens of a row without an advantage are not trained unless another term of the loss reaches them.
    """
    idle = sum(row.trained_tokens for row in rows if not _has_gradient(row, recipe))
    values = [s.advantage for row in rows for s in row.segments if s.trained]
    out: dict[str, float] = {
        "rows": len(rows),
        "tokens": sum(len(row.token_ids) for row in rows),
        "tokens_trained": sum(row.trained_tokens for row in rows) - idle,
        "tokens_zero_advantage": idle,
        "tokens_version_unknown": sum(row.trained_tokens - sum(v >= 0 for v in row.versions) for row in rows),
    }
    ages = sum((_ages(row) for row in rows), Counter[int]())
    if ages:
        out["staleness_mean"] = sum(age * n for age, n in ages.items()) / ages.total()
        out["staleness_max"] = max(ages)
    if values:
        out["advantage_abs_mean"] = mean([abs(value) for value in values])
    return out


def _has_gradient(row: Row, recipe: Recipe) -> bool:
    """Whether the loss has a gradient in the row's tokens."""
    every = recipe.kl or recipe.entropy or recipe.critic
    return bool(every) or any(s.trained and s.advantage for s in row.segments)


def _ages(row: Row) -> Counter[int]:
    """Age in versions → trained tokens of that age, for tokens with a known version."""
    if "staleness" not in row.metadata:
        return Counter()
    versions = Counter(version for version in row.versions if version >= 0)
    trained = row.metadata["staleness"] + min(versions)
    return Counter({trained - version: n for version, n in versions.items()})
