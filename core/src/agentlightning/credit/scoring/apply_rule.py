"""Apply a credit rule to one rollout.

Invariant: a rule that fails on one record affects that rollout alone. If it raises, or returns something
that is no credit, the error is logged and the rollout's calls are left out as ``credit-error``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

from agentlightning.credit.scoring.rules import CreditRule, Credits
from agentlightning.types import Recipe, Record

log = logging.getLogger(__name__)

CREDIT_ERROR: Final = "credit-error"
LARGEST_CREDIT: Final = 1e100
"""Credits up to it have finite sums and squares over any batch."""


def apply_rule(rule: CreditRule, record: Record, recipe: Recipe) -> Credits | None:
    """Call id → credit; ``None`` if the rule gives no usable answer."""
    try:
        credits = rule(record, recipe)
        if fault := _problem(credits, record):
            raise ValueError(fault)
        return {call: None if value is None else float(value) for call, value in credits.items()}
    except Exception as error:
        log.warning(
            "credit rule %r has no answer for rollout %s, which is left out as %s: %s: %s",
            recipe.credit,
            record.rollout.rollout_id,
            CREDIT_ERROR,
            type(error).__name__,
            error,
            exc_info=not isinstance(error, ValueError),
        )
        return None


def _problem(credits: object, record: Record) -> str:
    """The problem with an answer; empty if there is none."""
    if not isinstance(credits, Mapping):
        return f"it gave a {type(credits).__name__}, not a mapping from call ids to numbers"
    if unknown := set(credits) - {call.call_id for call in record.calls}:
        return f"it credited calls that it was not shown: {sorted(map(str, unknown))}"
    for call, value in credits.items():
        if value is not None and not math.isfinite(value):
            return f"it gave {value} for call {call!r}; missing is None"
        if value is not None and abs(value) > LARGEST_CREDIT:
            return f"it gave {value:g} for call {call!r}, beyond {LARGEST_CREDIT:g}: no mean of it is finite"
    return ""
