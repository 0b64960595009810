"""Credit assignment from records to rows, top to bottom.

``records → ledgers → rewards → rule → baseline → forest → rows → weights → metrics``

Pure and deterministic: the same records in any order give the same batch. Every call that is left out has a
reason in a ledger, and a missing reward never becomes a number: a rollout that failed or has no reward is
part of no baseline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec

from agentlightning.credit.advantage.baselines import BASELINES, Advantage, Advantages, Baseline, advantages
from agentlightning.credit.advantage.critic import check_critic, recipe_for_rule
from agentlightning.credit.advantage.groups import CreditedCall, turns
from agentlightning.credit.eligibility.failure import failure_of
from agentlightning.credit.eligibility.trainable import Versions, live_record, untrainable_reasons
from agentlightning.credit.eligibility.verdicts import verdicts
from agentlightning.credit.ledger import RolloutAccount, close_ledger, open_ledger
from agentlightning.credit.merging.forest import build_forest
from agentlightning.credit.merging.rows import build_row
from agentlightning.credit.merging.weights import set_weights
from agentlightning.credit.metrics import batch_metrics, policy_metrics
from agentlightning.credit.scoring.rules import CREDIT_ERROR, RULES, CreditRule, apply_rule
from agentlightning.types import Batch, Call, LossAggregation, Recipe, Record, Reward, Row
from agentlightning.types.failure import FailureTable


def assign(
    records: Sequence[Record],
    recipe: Recipe,
    *,
    version: Versions = None,
    rules: Mapping[str, CreditRule] | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    failure: FailureTable | None = None,
    out: dict[str, str] | None = None,
    explained: dict[str, Advantage] | None = None,
) -> Batch:
    """Return the batch of one step.

    ``version``: the policy version about to be trained, against which staleness is judged; for a run with
    named policies, name → version of each trained policy. ``rules`` and ``baselines``: those of plugins,
    which add to the built-ins or replace them. ``failure``: the failure table (see
    :mod:`agentlightning.types.failure`); failures without a reward are left out. Two dictionaries are filled
    for ``explain``: ``out`` with call id → why the call is not trained, ``explained`` with call id → how the
    advantage of the call came about. ``ValueError`` for a recipe that credit cannot carry out, and for
    records that occur twice.
    """
    check_recipe(recipe, rules, baselines)
    rule = {**RULES, **(rules or {})}[recipe.credit]
    accounts = [_start(record, recipe, version, failure or {}) for record in _sorted_unique(records)]
    for account in accounts:
        _apply_rule(account, recipe, rule)
    credited = [one for account in accounts for one in account.credited]
    groups = advantages(credited, recipe, {**BASELINES, **(baselines or {})})
    rows = [row for account in accounts for row in _rows(account, groups, recipe, version)]
    set_weights(rows, recipe)
    if out is not None:
        for account in accounts:
            out.update(account.out)
    if explained is not None:
        explained.update(groups.calls)
    policies = version if isinstance(version, Mapping) else ()
    return Batch(
        rows=rows,
        ledgers=[account.ledger for account in accounts],
        metrics=batch_metrics(accounts, groups, rows, recipe),
        policies={name: policy_metrics(name, accounts, groups, rows, recipe) for name in policies},
    )


def check_recipe(
    recipe: Recipe,
    rules: Mapping[str, CreditRule] | None = None,
    baselines: Mapping[str, Baseline] | None = None,
) -> None:
    """Raise ``ValueError`` that names the field, for values that credit cannot work with. ``rules`` and
    ``baselines``: as for :func:`assign`.
    """
    r, aggregations = recipe, get_args(LossAggregation)
    for field, kind, known in (
        ("credit", "rule", {**RULES, **(rules or {})}),
        ("baseline", "baseline", {**BASELINES, **(baselines or {})}),
    ):
        if (name := getattr(recipe, field)) not in known:
            raise ValueError(f"recipe.{field}: no {kind} {name!r}; known: {', '.join(sorted(known))}")
    checks = (
        (r.group_size >= 1, f"group_size = {r.group_size}: a task needs at least one rollout"),
        (
            r.loss_aggregation in aggregations,
            f"loss_aggregation = {r.loss_aggregation!r}; use {', '.join(aggregations)}",
        ),
        (r.scale in ("std", "none"), f"scale: {r.scale!r}; use std or none"),
        (
            0 < r.loss_divisor < math.inf,
            f"loss_divisor = {r.loss_divisor}: a divisor, must be finite and > 0",
        ),
        (0.0 <= r.gamma <= 1.0, f"gamma = {r.gamma}: must lie in [0, 1]"),
        (r.max_staleness >= 0, f"max_staleness = {r.max_staleness}: must be 0 or more versions"),
        (
            0 < r.temperature < math.inf,
            f"temperature = {r.temperature}: training needs a temperature above 0",
        ),
    )
    for holds, problem in checks:
        if not holds:
            raise ValueError(f"recipe.{problem}")
    check_critic(recipe)


def _sorted_unique(records: Sequence[Record]) -> list[Record]:
    """Sort by group, sample, rollout id; ``ValueError`` if a rollout or a call occurs twice."""
    named = [("rollout", record.rollout.rollout_id) for record in records]
    named += [("call", call.call_id) for record in records for call in record.calls]
    for (kind, one), n in Counter(named).items():
        if n > 1:
            raise ValueError(f"{kind} {one!r} occurs twice in the records of a step; ids must be unique")
    return sorted(records, key=_order)


def _order(record: Record) -> tuple[str, int, str]:
    rollout = record.rollout
    return rollout.group_id or rollout.task_id or "", rollout.sample, rollout.rollout_id


def _start(record: Record, recipe: Recipe, version: Versions, failure: FailureTable) -> RolloutAccount:
    """Open the ledger and leave out the calls that cannot be trained whatever their reward; of a failed
    rollout, all calls."""
    judged = verdicts(record)
    kind = failure_of(record)
    account = RolloutAccount(record, open_ledger(record, judged), kind)
    action = failure.get(kind) if kind is not None else None
    value = action.reward if action is not None else None
    if kind is not None and value is None:
        account.has_reward = False
        if kind != "no-call":  # whose calls, if any, have reasons of their own
            reason = "no-reward" if kind == "no-reward" else "failed-rollout"
            account.out = dict.fromkeys((call.call_id for call in record.calls), reason)
            return account
    if value is not None:
        account.record = msgspec.structs.replace(record, rewards=[Reward(value=value)])
    account.out = untrainable_reasons(record, judged, max_staleness=recipe.max_staleness, version=version)
    return account


def _apply_rule(account: RolloutAccount, recipe: Recipe, rule: CreditRule) -> None:
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


def _rows(account: RolloutAccount, groups: Advantages, recipe: Recipe, version: Versions) -> list[Row]:
    """Build the forest over the remaining calls, make its rows and close the ledger."""
    trained: list[Call] = []
    for call in (one.call for one in account.credited):
        zero_reason = groups.calls[call.call_id].zero_reason
        if zero_reason and recipe.filter_zero_std_groups:
            account.out[call.call_id] = zero_reason
        else:
            trained.append(call)
    forest = build_forest(trained, merge=recipe.merge, temperature=recipe.temperature)
    close_ledger(account, forest)
    rows = [build_row(path, account.record.rollout, groups.calls, recipe, version) for path in forest.paths]
    # Numbered by content: neither the attempt's id nor the arrival order of parallel calls is part of a row's
    # identity.
    rows.sort(key=lambda row: (row.policy, row.token_ids, row.logprobs))
    for number, row in enumerate(rows):
        row.row_id = f"{row.rollout_id}/{number}"
    return rows
