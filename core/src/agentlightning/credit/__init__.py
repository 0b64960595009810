"""Credit assignment: pure functions from records to rows, the same for every driver.

:func:`assign` is the entry and reads top to bottom. ``eligibility`` decides which calls may be trained,
``scoring`` gives each call a number, ``advantage`` subtracts baselines, ``merging`` joins calls into rows,
and ``fingerprints`` hashes what was trained. Imports nothing but ``types`` and ``semconv``.
"""

from __future__ import annotations

from agentlightning.credit.advantage.baselines import BASELINES, Baseline, Groups
from agentlightning.credit.assign import assign
from agentlightning.credit.eligibility.failure import failure_of
from agentlightning.credit.eligibility.verdicts import Verdict, verdict
from agentlightning.credit.explain import trace_token
from agentlightning.credit.fingerprints.digest import canonical_order, rows_digest
from agentlightning.credit.fingerprints.fingerprint import fingerprint_rollouts
from agentlightning.credit.merging.forest import CallPath, Forest, build_forest
from agentlightning.credit.scoring.rewards import Rewards, resolve
from agentlightning.credit.scoring.rules import RULES, CreditRule
from agentlightning.types.tokens import tokens_digest

__all__ = [
    "BASELINES",
    "RULES",
    "Baseline",
    "CreditRule",
    "Forest",
    "Groups",
    "CallPath",
    "Rewards",
    "Verdict",
    "assign",
    "failure_of",
    "build_forest",
    "canonical_order",
    "resolve",
    "rows_digest",
    "fingerprint_rollouts",
    "tokens_digest",
    "trace_token",
    "verdict",
]
