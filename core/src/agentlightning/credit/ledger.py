"""The ledger: account for every call of one rollout.

Invariant: ``made == trained + sum(left_out.values())``. A call that is not trained is counted under exactly
one reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agentlightning.credit.advantage.groups import CreditedCall
from agentlightning.credit.eligibility.verdicts import Verdict, disputed, refusal_of, refused, unrecorded
from agentlightning.credit.merging.forest import Forest
from agentlightning.credit.scoring.rewards import Rewards
from agentlightning.types import EarlierAttempt, Ledger, Record, Rollout

REFUSED = "refused-"
"""Beginning of the reason of a call that the gateway refused; the code of its answer follows."""


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
    credited: list[CreditedCall] = field(default_factory=list)


def open_ledger(record: Record, verdicts: Mapping[str, Verdict]) -> Ledger:
    """Count the calls that were made and recorded.

    A wire span without a record is a call that the gateway refused (left out as ``refused-<code>``), or that
    bypassed the gateway (``not-recorded``). Calls of earlier attempts are left out as ``other-attempt``.
    """
    lost = len(unrecorded(record))
    codes = Counter(f"{REFUSED}{refusal_of(span)}" for span in refused(record))
    earlier = sum(attempt.calls for attempt in record.earlier)
    recorded = len(record.calls) + earlier
    return Ledger(
        rollout_id=record.rollout.rollout_id,
        made=recorded + lost + codes.total(),
        recorded=recorded,
        with_ids=sum(call.has_ids for call in record.calls),
        left_out={
            **{reason: n for reason, n in (("not-recorded", lost), ("other-attempt", earlier)) if n},
            **codes,
        },
        verdicts=dict(Counter(v.kind for v in verdicts.values())),
        disputed=disputed(record, verdicts),
    )


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
