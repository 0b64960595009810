"""The ledger: account for every call of one rollout.

Invariant: ``made == trained + sum(left_out.values())``. A call that is not trained is counted under exactly
one reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agentlightning.credit.eligibility.verdicts import Verdict, unrecorded
from agentlightning.credit.merging.forest import Forest
from agentlightning.types import Ledger, Record


def open_ledger(record: Record, verdicts: Mapping[str, Verdict]) -> Ledger:
    """Count the calls that were made and recorded.

    A wire span without a record is a call that bypassed the gateway: left out as ``not-recorded``. Calls of
    earlier attempts are left out as ``other-attempt``.
    """
    lost = len(unrecorded(record))
    earlier = sum(attempt.calls for attempt in record.earlier)
    recorded = len(record.calls) + earlier
    return Ledger(
        rollout_id=record.rollout.rollout_id,
        made=recorded + lost,
        recorded=recorded,
        with_ids=sum(call.has_ids for call in record.calls),
        left_out={reason: n for reason, n in (("not-recorded", lost), ("other-attempt", earlier)) if n},
        verdicts=dict(Counter(v.kind for v in verdicts.values())),
    )


def close_ledger(ledger: Ledger, out: Mapping[str, str], forest: Forest) -> Ledger:
    """Enter the trained calls and the reasons of the others (``out``: call id → reason).

    ``AssertionError`` if a call is neither: that is a fault of this package, never of its input.
    """
    for reason, n in sorted(Counter(out.values()).items()):
        ledger.left_out[reason] = ledger.left_out.get(reason, 0) + n
    ledger.trained = sum(len(path.own) for path in forest.paths)
    ledger.merged = sum(len(path.own) - 1 for path in forest.paths)
    ledger.merge_failures = dict(sorted(forest.merge_failures.items()))
    if not ledger.sums:
        raise AssertionError(f"the ledger of rollout {ledger.rollout_id!r} does not sum: {ledger}")
    return ledger
