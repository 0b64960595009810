"""Baselines: credit → advantage.

A baseline sees *one value per rollout and location*, the mean credit of the rollout's calls there, so that a
long rollout does not outvote a short one. A location is a group, or with ``turn`` in ``group_by`` one turn of
a group. Then ``advantage(call) = credit(call) - baseline``, divided by ``s + 1e-6`` if ``recipe.scale ==
"std"``. ``s`` is the spread of the *group*, pooled over all its residuals (:mod:`.spread`); for one value a
rollout that is the sample standard deviation (n - 1). The GRPO paper (arXiv 2402.03300) writes std without
saying which; verl and TRL take ``torch.std``, the sample one.

``turn`` divides a group only if credits differ within its rollouts. If every rollout has one value, as with
one reward at the end, the group is one location; if every agent of a rollout has one, each agent is a
location; else each turn is.

Invariants. With a baseline, advantages are 0 and counted in a group of one rollout, in a group whose
rollouts earned the same at every turn, and for a call at a turn that no other rollout of its group has:
there is nothing to compare. No other group is 0 everywhere. ``none`` compares nothing and gives no zeros,
unless it is scaled.
Scaled, no advantage over ``group``, ``rloo`` or ``batch`` exceeds ``sqrt(rollouts of the group · calls of a
rollout)``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentlightning.credit.advantage.groups import (
    TURN,
    CreditedCall,
    GroupKey,
    agent_key,
    by_rollout,
    group_keys,
    grouped,
    turn_key,
)
from agentlightning.credit.advantage.spread import Residual, mean, nearly_equal, pooled_std
from agentlightning.types import Recipe

EPSILON = 1e-6
"""Added to the standard deviation, as verl and the GRPO reference implementations do."""

Groups = dict[GroupKey, dict[str, float]]
"""Location → rollout id → value, in the order of the records."""
Baseline = Callable[[Groups, Recipe], Groups]
"""The values at each location → a baseline for each of them, under the same keys."""


class Advantage(NamedTuple):
    """How one call's advantage came about: ``value = (credit - baseline) / scale``, or 0 where
    ``zero_reason`` is set.
    """

    value: float
    credit: float
    baseline: float
    scale: float
    group: GroupKey
    """Its location: the group, or one turn of it."""
    zero_reason: str
    """Why it is 0 by definition: ``group-of-one``, ``zero-spread``, or empty."""
    pool: GroupKey
    """Its group, by whose spread it may be divided."""
    spread: float


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantages of a batch by call id, and counts of its groups."""

    calls: dict[str, Advantage] = field(default_factory=dict)
    groups: int = 0
    groups_of_one: int = 0
    groups_zero_std: int = 0
    zero_reasons: dict[GroupKey, str] = field(default_factory=dict)
    """Group → why it has nothing to compare: ``group-of-one``, ``zero-spread``, or empty."""

    @property
    def calls_unpaired(self) -> int:
        """Calls at a turn that no other rollout of their group has, in groups that do have a spread."""
        return sum(bool(one.zero_reason) and not self.zero_reasons[one.pool] for one in self.calls.values())


def group(groups: Groups, recipe: Recipe) -> Groups:
    """The mean of the group, the rollout itself included (GRPO, arXiv 2402.03300)."""
    return {key: dict.fromkeys(values, mean(list(values.values()))) for key, values in groups.items()}


def rloo(groups: Groups, recipe: Recipe) -> Groups:
    """The mean of the *other* rollouts of the group (RLOO, arXiv 2402.14740); 0 in a group of one."""
    out: Groups = {}
    for key, values in groups.items():
        total, others = math.fsum(values.values()), max(len(values) - 1, 1)
        out[key] = {
            rollout: (total - value) / others if len(values) > 1 else 0.0 for rollout, value in values.items()
        }
    return out


def none(groups: Groups, recipe: Recipe) -> Groups:
    """No baseline: the advantage is the credit."""
    return {key: dict.fromkeys(values, 0.0) for key, values in groups.items()}


BASELINES: Mapping[str, Baseline] = {"group": group, "rloo": rloo, "batch": group, "none": none}
"""The built-in baselines by name. ``batch`` is the mean over one group that holds the whole batch, whatever
``group_by`` says but for ``turn``: one value per rollout (and turn)."""


def advantages(
    credited: Sequence[CreditedCall], recipe: Recipe, baselines: Mapping[str, Baseline] = BASELINES
) -> Advantages:
    """Advantage of every credited call. ``ValueError`` if the baseline leaves out a value.

    With calls of several policies, each policy is compared with itself, whatever ``group_by`` says.
    """
    group_by = _group_by(credited, recipe)
    pools = group_keys(credited, group_by)
    members = grouped(credited, pools)
    at = _locations(members, TURN in group_by)
    values = {key: _values(of) for key, of in grouped(credited, at).items()}
    bases = baselines[recipe.baseline](values, recipe)
    spreads = {key: _spread(of, at, values) for key, of in members.items()}
    out: dict[str, Advantage] = {}
    for one in credited:
        call, key = one.call.call_id, at[one.call.call_id]
        base = _base(bases, key, one.rollout.rollout_id, recipe)
        zero_reason = _why_zero(spreads[pools[call]], values[key], recipe)
        out[call] = _advantage(one, base, zero_reason, recipe, key, pools[call], spreads[pools[call]].std)
    zero_reasons = {key: spread.zero_reason for key, spread in spreads.items()}
    kinds = Counter(zero_reasons.values())
    return Advantages(out, len(zero_reasons), kinds["group-of-one"], kinds["zero-spread"], zero_reasons)


def _group_by(credited: Sequence[CreditedCall], recipe: Recipe) -> list[str]:
    found = list(recipe.group_by)
    if recipe.baseline == "batch":
        found = ["batch", *([TURN] if TURN in found else [])]
    if "policy" not in found and len({c.call.policy for c in credited}) > 1:
        found = ["policy", *found]
    return found


def _locations(members: Mapping[GroupKey, Sequence[CreditedCall]], by_turn: bool) -> dict[str, GroupKey]:
    """Call id → its location: its group, or its turn in the group if turns differ."""
    out: dict[str, GroupKey] = {}
    for key, of in members.items():
        suffix = _location_suffix(of) if by_turn else lambda one: ()
        out.update((one.call.call_id, (*key, *suffix(one))) for one in of)
    return out


def _location_suffix(of: Sequence[CreditedCall]) -> Callable[[CreditedCall], GroupKey]:
    """The suffix that ``turn`` adds to the key of a group's calls: nothing, their agent, or their turn."""
    candidates: tuple[Callable[[CreditedCall], GroupKey], ...] = (
        lambda one: (),
        lambda one: (agent_key(one),),
    )
    for candidate in candidates:
        each = grouped(of, {one.call.call_id: (one.rollout.rollout_id, *candidate(one)) for one in of})
        if all(nearly_equal([one.credit for one in own]) for own in each.values()):
            return candidate
    return lambda one: (turn_key(one),)


def _values(at: Sequence[CreditedCall]) -> dict[str, float]:
    """One value per rollout: the mean credit of its calls at a location."""
    return {rollout: mean([one.credit for one in own]) for rollout, own in by_rollout(at).items()}


class _GroupSpread(NamedTuple):
    std: float
    zero_reason: str


def _spread(of: Sequence[CreditedCall], at: Mapping[str, GroupKey], values: Groups) -> _GroupSpread:
    """The spread of a group, and why it gives nothing to learn."""
    centres = {key: mean(list(values[key].values())) for key in {at[one.call.call_id] for one in of}}
    residuals: dict[str, list[Residual]] = {}
    for one in of:
        key = at[one.call.call_id]
        if len(values[key]) > 1:
            found = Residual(one.credit - centres[key], len(values[key]))
            residuals.setdefault(one.rollout.rollout_id, []).append(found)
    if not residuals:
        return _GroupSpread(0.0, "group-of-one")
    return _GroupSpread(pooled_std(residuals), "zero-spread" if _rollouts_agree(of, at, values) else "")


def _rollouts_agree(of: Sequence[CreditedCall], at: Mapping[str, GroupKey], values: Groups) -> bool:
    """Whether the rollouts of a group earned the same: equal credits at every location, or the same turns
    with equal credits call for call.
    """
    compared = {key: own for key, own in grouped(of, at).items() if len(values[key]) > 1}
    if all(nearly_equal([one.credit for one in own]) for own in compared.values()):
        return True
    by_turn = grouped(of, {one.call.call_id: (turn_key(one),) for one in of})
    rollouts = len(by_rollout(of))
    return all(
        len(found := _values(own)) == rollouts and nearly_equal(found.values()) for own in by_turn.values()
    )


def _why_zero(spread: _GroupSpread, values: Mapping[str, float], recipe: Recipe) -> str:
    """Why a call's advantage is 0 by definition."""
    if recipe.baseline == "none":
        return spread.zero_reason if recipe.scale == "std" else ""
    return spread.zero_reason or ("group-of-one" if len(values) == 1 else "")


def _advantage(
    one: CreditedCall,
    base: float,
    zero_reason: str,
    recipe: Recipe,
    at: GroupKey,
    pool: GroupKey,
    spread: float,
) -> Advantage:
    scale = spread + EPSILON if recipe.scale == "std" and not zero_reason else 1.0
    value = 0.0 if zero_reason else (one.credit - base) / scale
    if not math.isfinite(value):
        raise ValueError(
            f"rollout {one.rollout.rollout_id!r}: the advantage of its credit {one.credit:g} over the "
            f"baseline {base:g} is {value}; the rewards of its group are too far apart for floating point"
        )
    return Advantage(value, one.credit, base, scale, at, zero_reason, pool, spread)


def _base(bases: Groups, key: GroupKey, rollout_id: str, recipe: Recipe) -> float:
    base = bases.get(key, {}).get(rollout_id)
    if base is None or not math.isfinite(base):
        raise ValueError(
            f"baseline {recipe.baseline!r} gave {base} for rollout {rollout_id!r} in group {key}; "
            "it must return a finite number for every value it is shown"
        )
    return base
