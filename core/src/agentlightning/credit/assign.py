"""Credit assignment from records to rows, top to bottom.

``records → verdicts → kind of failure → rewards → what can be trained → rule → baseline → forest → rows →
weights → metrics``

Each station is a file of this package. This file alone calls them, in this order, and enters none of them
twice on the way of a rollout. :class:`StepCredit` takes the records of a step group by group and keeps rows
and numbers of them; :func:`assign` does all at once, with the same batch.

Pure and deterministic: the same records in any order give the same batch. Every call that is left out has a
reason in a ledger, and a missing reward never becomes a number: a rollout that failed or has no reward is
part of no baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from agentlightning.credit.accounts import RolloutAccount, batch_metrics, close_ledger, policy_metrics
from agentlightning.credit.baselines import (
    BASELINES,
    Advantage,
    Advantages,
    Baseline,
    advantages,
)
from agentlightning.credit.checks import check_recipe
from agentlightning.credit.eligibility import Versions, live_record, untrainable_reasons, weighed_calls
from agentlightning.credit.forest import build_forest
from agentlightning.credit.rewards import resolve
from agentlightning.credit.rollout_reward import failure_of
from agentlightning.credit.rows import build_row, set_weights
from agentlightning.credit.rules import RULES, UNREWARDED, CreditRule, credit_calls
from agentlightning.credit.verdicts import open_ledger, verdicts
from agentlightning.types import (
    Batch,
    Call,
    Recipe,
    Record,
    Reward,
    Rollout,
    Row,
)
from agentlightning.types.failure import FailureTable, reward_by_table


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
    credit = StepCredit(recipe, version=version, rules=rules, baselines=baselines, failure=failure)
    credit.survey(records)
    credit.add(records)
    if out is not None:
        out.update(credit.out)
    if explained is not None:
        explained.update(credit.advantages.calls)
    return credit.batch()


class StepCredit:
    """The credit of one step, in parts: :meth:`add` the records of whole groups, then make the :meth:`batch`.

    Of a record only its rows, its ledger and one number a call are kept. If advantages compare rollouts of
    different groups (:attr:`spans_batch`), every record is surveyed before the first is added. Arguments and
    errors: as for :func:`assign`, whose batch it makes.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        version: Versions = None,
        rules: Mapping[str, CreditRule] | None = None,
        baselines: Mapping[str, Baseline] | None = None,
        failure: FailureTable | None = None,
    ) -> None:
        check_recipe(recipe, rules, baselines)
        self.recipe = recipe
        self.version = version
        self.failure = failure or {}
        self.advantages = Advantages()
        self._rule = {**RULES, **(rules or {})}[recipe.credit]
        self._baselines = {**BASELINES, **(baselines or {})}
        self._calls: set[str] = set()
        self._accounts: dict[str, RolloutAccount] = {}
        """Rollout id → account, of all that were surveyed."""
        self._uncompared: list[RolloutAccount] = []
        """Accounts whose calls have no advantage yet."""
        self._rows: dict[str, list[Row]] = {}
        """Rollout id → rows, of all that were added."""

    @property
    def spans_batch(self) -> bool:
        """Whether rollouts of different groups are compared: by the recipe, by a baseline of a plugin, which
        may look at all groups, or because the policies of a run with several have groups of their own.
        """
        recipe, version = self.recipe, self.version
        return (
            recipe.baseline == "batch"
            or "group" not in recipe.group_by
            or self._baselines[recipe.baseline] is not BASELINES.get(recipe.baseline)
            or (isinstance(version, Mapping) and len(version) > 1)
        )

    def survey(self, records: Sequence[Record]) -> None:
        """Open the ledgers of records and apply the rule, without making rows."""
        for record in sorted(records, key=lambda record: _order(record.rollout)):
            self._check_unique(record)
            account = _start(record, self.recipe, self.version, self.failure, self._rule)
            self._accounts[record.rollout.rollout_id] = account
            self._uncompared.append(account)

    def add(self, records: Sequence[Record]) -> None:
        """Compare the surveyed rollouts and make the rows of ``records``; those that were not surveyed are
        surveyed now. ``ValueError`` if that comes too late for what spans the batch.
        """
        self.survey(
            [
                record
                for record in records
                if record.rollout.rollout_id not in self._accounts or record.rollout.rollout_id in self._rows
            ]
        )
        if self._uncompared:
            if self._rows and self.spans_batch:
                raise ValueError(
                    "the recipe compares rollouts across groups: survey all records of the step first"
                )
            accounts = sorted(self._uncompared, key=lambda account: _order(account.rollout))
            credited = [one for account in accounts for one in account.credited]
            self.advantages.update(advantages(credited, self.recipe, self._baselines))
            self._uncompared = []
        for record in records:
            account = self._accounts[record.rollout.rollout_id]
            self._rows[record.rollout.rollout_id] = _rows(
                account, record, self.advantages, self.recipe, self.version
            )

    def batch(self) -> Batch:
        """Return the batch of all records that were added, with the weights of its rows."""
        accounts = sorted(self._accounts.values(), key=lambda account: _order(account.rollout))
        if missing := [
            one.rollout.rollout_id for one in accounts if one.rollout.rollout_id not in self._rows
        ]:
            raise ValueError(f"rollout {missing[0]!r} was surveyed and never added to the step's credit")
        rows = [row for account in accounts for row in self._rows[account.rollout.rollout_id]]
        set_weights(rows, self.recipe)
        policies = self.version if isinstance(self.version, Mapping) else ()
        terms = accounts, self.advantages, rows, self.recipe
        return Batch(
            rows=rows,
            ledgers=[account.ledger for account in accounts],
            metrics=batch_metrics(*terms),
            policies={name: policy_metrics(name, *terms) for name in policies},
        )

    @property
    def outcomes(self) -> dict[str, float | None]:
        """Rollout id → one number for what it earned, as it was credited; ``None``: left out."""
        return {
            one: account.rewards.outcome if account.rewards is not None else None
            for one, account in self._accounts.items()
        }

    @property
    def out(self) -> dict[str, str]:
        """Call id → why the call is not trained."""
        return {call: why for account in self._accounts.values() for call, why in account.out.items()}

    def _check_unique(self, record: Record) -> None:
        rollout_id, calls = record.rollout.rollout_id, Counter(call.call_id for call in record.calls)
        twice = [f"rollout {rollout_id!r}"] if rollout_id in self._accounts else []
        twice += [f"call {call!r}" for call, n in calls.items() if n > 1 or call in self._calls]
        if twice:
            raise ValueError(f"{twice[0]} occurs twice in the records of a step; ids must be unique")
        self._calls.update(calls)


def _order(rollout: Rollout) -> tuple[str, int, str]:
    """Sort key of the rollouts of a batch: group, sample, rollout id."""
    return rollout.group_id or rollout.task_id or "", rollout.sample, rollout.rollout_id


def _start(
    record: Record, recipe: Recipe, version: Versions, failure: FailureTable, rule: CreditRule
) -> RolloutAccount:
    """Open the ledger and leave out the calls that cannot be trained whatever their reward; of a failed
    rollout, all calls. Apply the rule to the rest."""
    judged = verdicts(record)
    ledger = open_ledger(record, judged)
    kind = failure_of(record)
    if kind == "no-reward" and getattr(rule, UNREWARDED, False):
        kind = None
    policies = {call.call_id: call.policy for call in record.calls}
    account = RolloutAccount(record.rollout, ledger, kind, earlier=record.earlier, policies=policies)
    value = reward_by_table(kind, failure) if kind is not None else None
    if value is not None:
        record = msgspec.structs.replace(record, rewards=[Reward(value=value, returned=True)])
    if kind is None or value is not None:
        account.rewards = resolve(record)
    elif kind != "no-call":  # whose calls, if any, have reasons of their own
        reason = "no-reward" if kind == "no-reward" else "failed-rollout"
        account.out = dict.fromkeys(account.policies, reason)
        return account
    account.out = untrainable_reasons(record, judged, recipe, version=version)
    if len(account.out) < len(record.calls):
        account.weighed = weighed_calls(record.calls, recipe)
        account.credited = credit_calls(live_record(record, account.out), account.out, recipe, rule)
    return account


def _rows(
    account: RolloutAccount, record: Record, groups: Advantages, recipe: Recipe, version: Versions
) -> list[Row]:
    """Build the forest over the remaining calls, make its rows and close the ledger."""
    calls = {call.call_id: call for call in record.calls}
    trained: list[Call] = []
    for one in account.credited:
        zero_reason = groups.calls[one.call_id].zero_reason
        if zero_reason and recipe.filter_zero_std_groups:
            account.out[one.call_id] = zero_reason
        else:
            trained.append(calls[one.call_id])
    weighed = account.weighed.intersection(call.call_id for call in trained)
    forest = build_forest(trained, merge=recipe.merge, temperature=recipe.temperature, weighed=weighed)
    rows = [build_row(path, record.rollout, groups.calls, recipe, version, weighed) for path in forest.paths]
    # Numbered by content: neither the attempt's id nor the arrival order of parallel calls is part of a row's
    # identity.
    rows.sort(key=lambda row: (row.policy, row.token_ids, row.logprobs))
    for number, row in enumerate(rows):
        row.row_id = f"{row.rollout_id}/{number}"
    close_ledger(account, forest, weighed)
    return rows
