"""Whether rewards, credit rule and the baseline's grouping fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentlightning.algorithms.evaluate import unread_rewards
from agentlightning.credit.groups import TURN, nearly_equal
from agentlightning.terminal import plural
from agentlightning.types import Batch, Recipe, Record
from agl_testing.doctor.figures import percent
from agl_testing.doctor.report import Notes

ALONE = 0.5
"""Share of calls without a counterpart in another rollout above which most of a batch teaches nothing."""


class CreditConflicts(NamedTuple):
    """Share of rollouts whose calls have different credits while whole rollouts are compared."""

    rollouts: int
    of: int


def judge_fit(notes: Notes, records: Sequence[Record], batch: Batch, recipe: Recipe) -> bool:
    """Report misfits. Return whether the rule gives some calls no credit for a reason that was reported."""
    unfit = (
        unread_rewards(records, recipe.credit)
        if any("no-reward" in ledger.left_out for ledger in batch.ledgers)
        else ""
    )
    if unfit:
        say = notes.warn if batch.metrics.get("calls_trained") else notes.fail
        say(
            f"calls have no credit: {unfit}",
            "Set training.recipe.credit to a rule that reads the rewards your agent emits, or emit those "
            "that the rule reads.",
        )
    if not recipe.critic:
        _grouping(notes, batch, recipe)
    return bool(unfit)


def credits_differ(batch: Batch) -> bool:
    """Return whether some rollout's calls have different credits, so that its mean says little."""
    return credit_conflicts(batch, "pool").rollouts > 0


def credit_conflicts(batch: Batch, where: str) -> CreditConflicts:
    """Return the share of rollouts with different credits at one place.

    ``where`` is ``group`` (the place at which calls are compared) or ``pool`` (the whole group).
    """
    credits: dict[tuple[str, ...], list[float]] = {}
    for row in batch.rows:
        for account in row.metadata.get("calls", {}).values():
            credits.setdefault((row.rollout_id, *account[where]), []).append(account["credit"])
    apart = {key[0] for key, values in credits.items() if not nearly_equal(values)}
    return CreditConflicts(len(apart), len({key[0] for key in credits}))


def _grouping(notes: Notes, batch: Batch, recipe: Recipe) -> None:
    """Report whether calls are compared with calls of the same turn."""
    compares = recipe.baseline != "none" or recipe.scale == "std"
    if recipe.baseline == "none" and recipe.scale == "std":
        notes.warn(
            "baseline none with scale std divides whole credits by a group's spread: where its rollouts did "
            "nearly equally well, every call has a huge advantage",
            "Set training.recipe.scale to none, or training.recipe.baseline to group.",
        )
    apart = credit_conflicts(batch, "group")
    if compares and TURN not in recipe.group_by and apart.rollouts:
        mended, given = (", ".join(names) for names in ([*recipe.group_by, TURN], recipe.group_by))
        notes.warn(
            f"the rule {recipe.credit} gives the calls of {apart.rollouts} of {plural(apart.of, 'rollout')} "
            f"different credits, and they are compared with the mean of whole rollouts (baseline "
            f"{recipe.baseline}, scale {recipe.scale}, group_by [{given}]): what differs from turn to turn "
            "is taken for good or bad",
            f"Set training.recipe.group_by to [{mended}]; left out, it is [group, turn] with the rules "
            "per_call, discounted and per_agent.",
        )
    alone, trained = (batch.metrics.get(name, 0.0) for name in ("calls_unpaired", "calls_trained"))
    alone_out = sum(ledger.left_out.get("group-of-one", 0) for ledger in batch.ledgers)
    share = alone / (trained + alone_out) if trained + alone_out else 0.0
    if TURN in recipe.group_by and share > ALONE:
        notes.warn(
            f"{percent(share)} of the calls are at a turn that no other rollout of their task has: they are "
            "compared with nothing, and their advantage is 0",
            "Set training.recipe.group_size higher, or training.recipe.group_by to [group].",
        )
