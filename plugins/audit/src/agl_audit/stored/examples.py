"""Examples from stored rollouts, and the choice of those that are learned from.

An example is one rollout: its reward, and the rows that credit makes of its calls, with the engine's own
token ids. Invariant: every rollout that was read is learned from or counted with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentlightning.credit.assign import assign
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.types import Recipe, Record, Row
from agentlightning.types.arrays import Floats, Ints

NOT_TRAINING = "not-training"
"""Reason of rollouts of an evaluation: their tasks are held out."""


@dataclass(frozen=True, slots=True)
class Example:
    """A rollout to learn from. ``rows`` are of one policy; their tokens weigh nothing yet."""

    rollout_id: str
    group: str
    sample: int
    reward: float
    rows: Sequence[Row] = field(repr=False)

    @property
    def tokens(self) -> int:
        """Its trained tokens."""
        return sum(row.trained_tokens for row in self.rows)

    def weigh(self, advantage: float, weight: float) -> Iterator[Row]:
        """Yield its rows with this advantage and weight at each trained token."""
        for row in self.rows:
            row.advantages = Floats([advantage * on for on in row.mask])
            row.weights = Floats([weight * on for on in row.mask])
            yield row


def examples(
    records: Iterable[Record], recipe: Recipe, policy: str, left_out: Counter[str]
) -> Iterator[Example]:
    """Yield the examples of finished rollouts: the calls to ``policy`` that ``recipe`` can train.

    ``left_out`` counts the others: rollouts by reason, and calls of examples as ``calls/<reason>``.
    """
    for record in records:
        rollout = record.rollout
        if rollout.mode not in (None, "train"):
            left_out[NOT_TRAINING] += 1
            continue
        batch = assign([record], recipe)
        (ledger,) = batch.ledgers
        rows = [row for row in batch.rows if row.policy == policy and row.trained_tokens]
        outcome = rollout_reward(record).value
        if not rows or outcome is None:
            others = sorted({row.policy for row in batch.rows} - {policy})
            why = "other-policy" if others and not rows else "no-reward" if rows else _main(ledger.left_out)
            left_out[why] += 1
            continue
        left_out.update({f"calls/{reason}": n for reason, n in ledger.left_out.items()})
        for row in rows:  # they are of other weights than those that are trained, at whatever temperature
            row.versions = Ints([-1] * len(row.token_ids))
            row.temperature = 1.0
        group = rollout.group_id or rollout.task_id or rollout.rollout_id
        yield Example(rollout.rollout_id, group, rollout.sample, outcome, rows)


def _main(reasons: Mapping[str, int]) -> str:
    """The reason of most calls; ``no-call`` if there were none."""
    return max(sorted(reasons), key=lambda name: reasons[name], default="no-call")


def at_least(found: Sequence[Example], minimum: float | None, left_out: Counter[str]) -> list[Example]:
    """Return the examples whose reward is at least ``minimum`` (``None``: all)."""
    kept = [one for one in found if minimum is None or one.reward >= minimum]
    left_out["below-minimum"] += len(found) - len(kept)
    return kept


def best_of(found: Sequence[Example], best: int, left_out: Counter[str]) -> list[Example]:
    """Return the ``best`` examples of each group, of equal ones the earlier sample (best of n: RAFT, arXiv
    2304.06767). A group whose rewards are all equal chooses nothing (``tie``).
    """
    kept: list[Example] = []
    for of in _groups(found):
        if len(of) == 1 or of[0].reward == of[-1].reward:
            left_out["group-of-one" if len(of) == 1 else "tie"] += len(of)
            continue
        kept += of[:best]
        left_out["not-best"] += len(of[best:])
    return kept


def pairs(found: Sequence[Example], left_out: Counter[str]) -> list[tuple[Example, Example]]:
    """Return pairs (better, worse) of one group: its best with its worst, the second best with the second
    worst, and so on, each rollout at most once. Equal rewards make no pair (``tie``).
    """
    kept: list[tuple[Example, Example]] = []
    for of in _groups(found):
        made = [
            (better, worse)
            for better, worse in zip(of, reversed(of), strict=True)
            if better.reward > worse.reward
        ]
        kept += made
        left_out["group-of-one" if len(of) == 1 else "tie"] += len(of) - 2 * len(made)
    return kept


def _groups(found: Sequence[Example]) -> Iterator[list[Example]]:
    """Yield each group, best first; of equal rewards, the earlier sample first."""
    for _, of in sorted(by_group(found).items()):
        yield sorted(of, key=lambda one: (-one.reward, one.sample, one.rollout_id))


def by_group(found: Sequence[Example]) -> dict[str, list[Example]]:
    """Return group → its examples."""
    out: dict[str, list[Example]] = {}
    for one in found:
        out.setdefault(one.group, []).append(one)
    return out
