"""Credit assignment: pure functions from records to rows, the same for every driver.

:func:`assign` is the entry and reads top to bottom: each station of a rollout's way is a file of this room.
Beside the way stand ``merge_failures``, which names why a conversation did not become one row, ``groups``,
which every comparison uses, and ``digest`` and ``fingerprint``, which hash what was trained. It imports
nothing but ``types``, ``semconv`` and ``log_limit``.
"""

from __future__ import annotations

from agentlightning.credit.assign import assign as assign
from agentlightning.credit.digest import canonical_order as canonical_order, rows_digest as rows_digest
from agentlightning.credit.forest import build_forest as build_forest
from agentlightning.credit.rewards import resolve as resolve
from agentlightning.credit.rollout_reward import failure_of as failure_of
