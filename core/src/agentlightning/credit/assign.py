"""Credit assignment from records to rows, top to bottom.

``records → ledgers → rewards → rule → baseline → forest → rows → weights → metrics``

Pure and deterministic: the same records in any order give the same batch. Every call that is left out has a
reason in a ledger, and a missing reward never becomes a number: a rollout that failed or has no reward is
part of no baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from agentlightning.credit.advantage.baselines import BASELINES, Advantages, Baseline, advantages
from agentlightning.credit.advantage.critic import check_critic, recipe_for_rule
from agentlightning.credit.advantage.groups import CreditedCall, turns
from agentlightning.credit.eligibility.failure import failure_of, with_reward
from agentlightning.credit.eligibility.trainable import Versions, live_record, untrainable_reasons
from agentlightning.credit.eligibility.verdicts import verdicts
from agentlightning.credit.ledger import close_ledger, open_ledger
from agentlightning.credit.merging.forest import Forest, build_forest
from agentlightning.credit.merging.rows import build_row
from agentlightning.credit.merging.weights import set_weights
from agentlightning.credit.metrics import batch_metrics
from agentlightning.credit.policy_batch import policy_metrics
from agentlightning.credit.scoring.apply_rule import CREDIT_ERROR, apply_rule
from agentlightning.credit.scoring.rewards import resolve
from agentlightning.credit.scoring.rules import RULES, CreditRule
from agentlightning.types import Batch, Call, Ledger, LossAggregation, Recipe, Record, Row
from agentlightning.types.failure import FailureTable


@dataclass(slots=True)
class _RolloutCredit:
    """One rollout during credit assignment."""

    record: Record
    ledger: Ledger
    failure: str | None
    has_reward: bool = True
    """It has a reward: it succeeded, or the table gives its failure one."""
    out: dict[str, str] = field(default_factory=dict)
    """Call id → why it is not trained."""
    credited: list[CreditedCall] = field(default_factory=list)


def assign(
    records: Sequence[Record],
    recipe: Recipe,
    *,
    version: Versions = None,
    rules: Mapping[str, CreditRule] | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    failure: FailureTable | None = None,
    out: dict[str, str] | None = None,
) -> Batch:
    """The batch of one step.

    ``version``: the policy version about to be trained, against which staleness is judged; for a run with
    named policies, name → version of each trained policy. ``rules`` and ``baselines``: those of plugins,
    which add to the built-ins or replace them. ``failure``: the failure table (see
    :mod:`agentlightning.types.failure`); failures without a reward are left out. ``out``: filled with call id
    → why the call is not trained, for ``explain``. ``ValueError`` for a recipe that credit cannot carry out,
    and for records that occur twice.
    """
    check_recipe(recipe, rules, baselines)
    all_rules, all_baselines = {**RULES, **(rules or {})}, {**BASELINES, **(baselines or {})}
    accounts = [_start(record, recipe, version, failure or {}) for record in _sorted_unique(records)]
    for account in accounts:
        _apply_rule(account, recipe, all_rules[recipe.credit])
    groups = advantages([c for account in accounts for c in account.credited], recipe, all_baselines)
    rows: list[Row] = []
    for account in accounts:
        rows += _rows(account, groups, recipe, version)
    set_weights(rows, recipe)
    if out is not None:
        out.update((call_id, reason) for account in accounts for call_id, reason in account.out.items())
    ledgers = [account.ledger for account in accounts]
    metrics = batch_metrics(
        rewards=[resolve(a.record) for a in accounts if a.has_reward],
        failures=[a.failure for a in accounts if a.failure is not None],
        ledgers=ledgers,
        groups=groups,
        rows=rows,
        recipe=recipe,
        earlier=[attempt for a in accounts for attempt in a.record.earlier],
    )
    policies = _policies(accounts, groups, rows, recipe, version) if isinstance(version, Mapping) else {}
    return Batch(rows=rows, ledgers=ledgers, metrics=metrics, policies=policies)


def _policies(
    accounts: Sequence[_RolloutCredit],
    groups: Advantages,
    rows: Sequence[Row],
    recipe: Recipe,
    names: Iterable[str],
) -> dict[str, dict[str, float]]:
    """Metrics of each policy."""
    calls = [(call, a.out.get(call.call_id)) for a in accounts for call in a.record.calls]
    credited = [c for account in accounts for c in account.credited]
    return {name: policy_metrics(name, calls, credited, groups, rows, recipe) for name in names}


def check_recipe(
    recipe: Recipe,
    rules: Mapping[str, CreditRule] | None = None,
    baselines: Mapping[str, Baseline] | None = None,
) -> None:
    """``ValueError`` that names the field, for values credit cannot work with; arguments as of
    :func:`assign`.
    """
    rules, baselines = {**RULES, **(rules or {})}, {**BASELINES, **(baselines or {})}
    if recipe.group_size < 1:
        raise ValueError(f"recipe.group_size = {recipe.group_size}: a task needs at least one rollout")
    if recipe.credit not in rules:
        raise ValueError(f"recipe.credit: no rule {recipe.credit!r}; known: {', '.join(sorted(rules))}")
    if recipe.baseline not in baselines:
        known = ", ".join(sorted(baselines))
        raise ValueError(f"recipe.baseline: no baseline {recipe.baseline!r}; known: {known}")
    if recipe.loss_aggregation not in get_args(LossAggregation):
        raise ValueError(
            f"recipe.loss_aggregation = {recipe.loss_aggregation!r}; "
            f"use {', '.join(get_args(LossAggregation))}"
        )
    if recipe.scale not in ("std", "none"):
        raise ValueError(f"recipe.scale: {recipe.scale!r}; use std or none")
    if not (math.isfinite(recipe.loss_divisor) and recipe.loss_divisor > 0):
        raise ValueError(f"recipe.loss_divisor = {recipe.loss_divisor}: a divisor, must be finite and > 0")
    if not 0.0 <= recipe.gamma <= 1.0:
        raise ValueError(f"recipe.gamma = {recipe.gamma}: must lie in [0, 1]")
    if recipe.max_staleness < 0:
        raise ValueError(f"recipe.max_staleness = {recipe.max_staleness}: must be 0 or more versions")
    if not (math.isfinite(recipe.temperature) and recipe.temperature > 0):
        raise ValueError(f"recipe.temperature = {recipe.temperature}: training needs a temperature above 0")
    check_critic(recipe)


def _sorted_unique(records: Sequence[Record]) -> list[Record]:
    """By group, sample, rollout id; ``ValueError`` if a rollout or a call occurs twice."""
    rollouts: set[str] = set()
    calls: set[str] = set()
    for record in records:
        for seen, kind, one in [(rollouts, "rollout", record.rollout.rollout_id)] + [
            (calls, "call", call.call_id) for call in record.calls
        ]:
            if one in seen:
                raise ValueError(f"{kind} {one!r} occurs twice in the records of a step; ids must be unique")
            seen.add(one)
    return sorted(records, key=_order)


def _order(record: Record) -> tuple[str, int, str]:
    rollout = record.rollout
    return rollout.group_id or rollout.task_id or "", rollout.sample, rollout.rollout_id


def _start(record: Record, recipe: Recipe, version: Versions, failure: FailureTable) -> _RolloutCredit:
    """Open the ledger and leave out calls that cannot be trained whatever their reward; of a failed
    rollout, all."""
    judged = verdicts(record)
    kind = failure_of(record)
    account = _RolloutCredit(record, open_ledger(record, judged), kind)
    action = failure.get(kind) if kind is not None else None
    value = action.reward if action is not None else None
    if kind is not None and value is None:
        account.has_reward = False
        if kind != "no-call":  # whose calls, if any, have reasons of their own
            reason = "no-reward" if kind == "no-reward" else "failed-rollout"
            account.out = dict.fromkeys((call.call_id for call in record.calls), reason)
            return account
    if value is not None:
        account.record = with_reward(record, value)
    account.out = untrainable_reasons(record, judged, max_staleness=recipe.max_staleness, version=version)
    return account


def _apply_rule(account: _RolloutCredit, recipe: Recipe, rule: CreditRule) -> None:
    """Apply the rule. A call without a number is left out: ``no-reward``, ``not-<rule>`` if the rule
    skipped it, or ``credit-error`` if the rule gave no usable answer for the rollout.
    """
    if len(account.out) == len(account.record.calls):
        return
    seen = live_record(account.record, account.out)
    credits = apply_rule(rule, seen, recipe_for_rule(recipe))
    at = turns(seen.calls)
    for call in seen.calls:
        if call.call_id in account.out:
            continue
        credit = None if credits is None else credits.get(call.call_id)
        if credits is None:
            account.out[call.call_id] = CREDIT_ERROR
        elif credit is None:
            account.out[call.call_id] = "no-reward" if call.call_id in credits else f"not-{recipe.credit}"
        else:
            found = CreditedCall(account.record.rollout, call, credit, at[call.call_id])
            account.credited.append(found)


def _rows(account: _RolloutCredit, groups: Advantages, recipe: Recipe, version: Versions) -> list[Row]:
    """Build the forest over the remaining calls, make its rows and close the ledger."""
    trained: list[Call] = []
    for call in (one.call for one in account.credited):
        zero_reason = groups.calls[call.call_id].zero_reason
        if zero_reason and recipe.filter_zero_std_groups:
            account.out[call.call_id] = zero_reason
        else:
            trained.append(call)
    forest: Forest = build_forest(trained, merge=recipe.merge, temperature=recipe.temperature)
    close_ledger(account.ledger, account.out, forest)
    rows = [build_row(path, account.record.rollout, groups.calls, recipe, version) for path in forest.paths]
    return _numbered(rows)


def _numbered(rows: list[Row]) -> list[Row]:
    """The rows of one rollout, numbered by content: neither the attempt's id nor the arrival order of
    parallel calls is part of a row's identity.
    """
    rows.sort(key=lambda row: (row.policy, row.token_ids, row.logprobs))
    for number, row in enumerate(rows):
        row.row_id = f"{row.rollout_id}/{number}"
    return rows
