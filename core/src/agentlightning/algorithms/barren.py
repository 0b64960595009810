"""Barren steps: a run that has stopped learning, because nothing comes back, ends with the reason.

A dead engine, a broken agent or a wrong ``select`` would otherwise be found out when all steps are over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentlightning.algorithms.evaluate import NothingRewarded, first_traceback, misfit, reasons
from agentlightning.types import Batch, Record, UsageError
from agentlightning.types.base import LEARNED_NOTHING
from agentlightning.types.select import caller

BARREN_STEPS = 3
"""Steps in a row without a rewarded rollout after which a run ends with an error."""


FLAT = frozenset({"zero-spread", "group-of-one"})
"""Reasons for leaving calls out that say nothing against the run: there was just nothing to prefer."""


TOO_EQUAL = (
    "Take tasks that the policy solves sometimes, a reward with more than two values, a higher temperature "
    "or larger groups; `agl doctor` measures the spread"
)


class NothingTrained(UsageError):
    """Rollouts are rewarded, but none of their calls can be trained: a wrong ``select``, or no calls."""

    status = LEARNED_NOTHING


class Barren:
    """Counts the steps in a row from which nothing could be learned, of the run and of each policy.

    ``say``: where a line for the person at the terminal goes. ``rule``: the recipe's credit rule.
    """

    def __init__(self, say: Callable[[str], None], rule: str = "") -> None:
        self._say = say
        self._rule = rule
        self.steps = 0
        """In a row without anything to learn."""
        self.flat = 0
        """In a row in which no group had a spread."""
        self.silent: Counter[str] = Counter()
        """Policy → steps in a row without a row for it."""

    def state(self) -> dict[str, Any]:
        """What goes into a checkpoint."""
        kept: dict[str, Any] = {"barren": self.steps}
        if self.flat:
            kept["flat"] = self.flat
        return {**kept, "silent": dict(self.silent)} if self.silent else kept

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.steps = state.get("barren", 0)
        self.flat = state.get("flat", 0)
        self.silent.update(state.get("silent", {}))

    def step(self, step: int, batch: Batch, records: Sequence[Record]) -> None:
        """Take note of a step; say what is wrong at the first one of which nothing was rewarded. Raises
        :class:`.NothingRewarded` or :class:`NothingTrained` at the third.
        """
        learnable = batch.metrics.get("calls_trained") or _only_flat(batch)
        self.steps = 0 if learnable else self.steps + 1
        if self.steps >= BARREN_STEPS:
            raise _nothing(step, batch, records, self._rule)
        if self.steps == 1 and not batch.metrics.get("reward_count"):
            self._say(
                f"step {step + 1}: not one of {len(records)} rollouts got a reward: {reasons(records)}"
                f"{first_traceback(records)}"
            )
        self._flat(step, batch)
        for name, own in batch.policies.items():
            self.silent[name] = 0 if own["rows"] else self.silent[name] + 1
            if self.silent[name] == BARREN_STEPS:
                out = ", ".join(f"{n:g} × {k[4:]}" for k, n in own.items() if k.startswith("out/"))
                why = f"its calls were left out: {out}" if out else "no call went to it (see `policies`)"
                self._say(f"{BARREN_STEPS} steps in a row trained nothing of policy {name!r}: {why}")

    def _flat(self, step: int, batch: Batch) -> None:
        """Say once that steps teach nothing because all rollouts of a group get the same reward."""
        flat = batch.metrics.get("reward_count") and not batch.metrics.get("tokens_trained")
        self.flat = self.flat + 1 if flat and (_only_flat(batch) or batch.rows) else 0
        if self.flat == BARREN_STEPS:
            reward = batch.metrics.get("reward_mean", 0.0)
            self._say(
                f"steps {step - BARREN_STEPS + 2} to {step + 1} taught nothing: in each group all rollouts "
                f"got the same reward (on average {reward:.3f}), so that there is nothing to prefer. "
                f"{TOO_EQUAL}"
            )


def _nothing(step: int, batch: Batch, records: Sequence[Record], rule: str) -> UsageError:
    """What ends the run."""
    idle = batch.metrics.get("failed/no-call") == len(records)
    if batch.metrics.get("reward_count") or idle:
        why = _why(records, batch, rule)
        return NothingTrained(f"{BARREN_STEPS} steps in a row trained not one call: {why}")
    return NothingRewarded(
        f"steps {step - BARREN_STEPS + 2} to {step + 1}: not one rollout got a reward; "
        f"in the last of them: {reasons(records)}{first_traceback(records)}"
    )


def _only_flat(batch: Batch) -> bool:
    """Whether all calls were left out because their groups were flat."""
    out = {reason for ledger in batch.ledgers for reason in ledger.out} - {"frozen-policy"}
    return bool(out) and out <= FLAT


def _why(records: Sequence[Record], batch: Batch, rule: str) -> str:
    """Why no call was trained, and whom the calls came from."""
    reasons_out: Counter[str] = Counter()
    for ledger in batch.ledgers:
        reasons_out.update(ledger.out)
    if not reasons_out:
        return "the agent made no model call; is it using the endpoint it is given?"
    agents = sorted({caller(call.tags) for record in records for call in record.calls})
    listed = ", ".join(f"{n} × {reason}" for reason, n in reasons_out.most_common(3))
    if reasons_out["no-reward"] and (unfit := misfit(records, rule)):
        return f"{listed}: {unfit}"
    return f"{listed}; calls came from {', '.join(agents)} (see `select`)"
