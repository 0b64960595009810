"""Credit assignment: pure functions from records to rows, the same for every driver.

:func:`assign` is the entry and reads top to bottom. ``eligibility`` decides which calls may be trained,
``scoring`` gives each call a number, ``advantage`` subtracts baselines, ``merging`` joins calls into rows,
and ``fingerprints`` hashes what was trained. Imports nothing but ``types`` and ``semconv``.
"""

from __future__ import annotations

from agentlightning.credit.assign import assign as assign
from agentlightning.credit.baselines import (
    BASELINES as BASELINES,
    Baseline as Baseline,
    Groups as Groups,
)
from agentlightning.credit.digest import (
    canonical_order as canonical_order,
    rows_digest as rows_digest,
)
from agentlightning.credit.fingerprint import fingerprint_rollouts as fingerprint_rollouts
from agentlightning.credit.forest import (
    CallPath as CallPath,
    Forest as Forest,
    build_forest as build_forest,
)
from agentlightning.credit.rewards import Rewards as Rewards, resolve as resolve
from agentlightning.credit.rollout_reward import failure_of as failure_of
from agentlightning.credit.rules import RULES as RULES, CreditRule as CreditRule
from agentlightning.credit.verdicts import Verdict as Verdict, verdict as verdict
from agentlightning.types.tokens import tokens_digest as tokens_digest
