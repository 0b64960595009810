"""Baselines: credit → advantage.

A baseline sees *one value per rollout and location*, the mean credit of the rollout's calls there, so that a
long rollout does not outvote a short one. A location is a group, or with ``turn`` in ``group_by`` one turn of
a group. Then ``advantage(call) = credit(call) - baseline``, divided by ``s + 1e-6`` if ``recipe.scale ==
"std"``. ``s`` is the spread of the *group*, pooled over all its residuals (:mod:`.groups`); for one value a
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

**States.** A second advantage comes from calls made in the same state: the step level of GiGPO (arXiv
2505.10978, equations 6 to 8). Rollouts of one group pass through the same states. The calls of the group that
were made in one state are compared by their returns, ``G_t = r_t + gamma G_(t+1)``:

    A^S = (G - mean(G)) / (std(G) + 1e-6)                   over these calls, each of which counts once

and ``recipe.step_weight * A^S`` is added to the advantage of the episode. ``scale="none"`` divides by
nothing. A state is the call's tag ``state``, else its prompt. Calls of different groups, policies or agents
are never compared; a call alone in its state gets 0, and is counted (``states_of_one``), as is one whose
return is missing (``steps_missing``).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentlightning.credit.groups import (
    TURN,
    CreditedCall,
    GroupKey,
    Residual,
    agent_key,
    agent_of,
    group_key,
    grouped,
    mean,
    nearly_equal,
    pooled_std,
    std,
    turn_key,
)
from agentlightning.types import Recipe

EPSILON = 1e-6
"""Added to the standard deviation, as verl and the GRPO reference implementations do."""

STEP_COUNTS = {"state-of-one": "states_of_one", "no-return": "steps_missing"}
"""Reason for a call without a step advantage → its metric."""

Groups = dict[GroupKey, dict[str, float]]
"""Location → rollout id → value, in the order of the records."""
Baseline = Callable[[Groups, Recipe], Groups]
"""The values at each location → a baseline for each of them, under the same keys."""


class Advantage(NamedTuple):
    """The advantage of one call and its terms: ``value = (credit - baseline) / scale``, or 0 if
    ``zero_reason`` is set; plus ``step``.
    """

    value: float
    credit: float
    baseline: float
    scale: float
    group: GroupKey
    """Its location: the group, or one turn of it."""
    zero_reason: str
    """Why it is 0 by definition: ``group-of-one``, ``zero-std``, or empty."""
    pool: GroupKey
    """Its group, by whose spread it may be divided."""
    spread: float
    step: float = 0.0
    """What the comparison with calls in the same state adds (:func:`step_advantages`)."""
    step_reason: str = ""
    """Why nothing was added: ``state-of-one``, ``no-return``, or empty."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantages of a batch."""

    calls: dict[str, Advantage] = field(default_factory=dict)
    """Call id → its advantage."""
    zero_reasons: dict[GroupKey, str] = field(default_factory=dict)
    """Group → why it has nothing to compare: ``group-of-one``, ``zero-std``, or empty."""

    def update(self, other: Advantages) -> None:
        """Add the advantages of other groups."""
        self.calls.update(other.calls)
        self.zero_reasons.update(other.zero_reasons)

    def counts(self, calls: Iterable[str] | None = None) -> dict[str, int]:
        """Count the groups of ``calls`` (default: of all calls) under the names of their metrics.

        ``calls_unpaired``: calls at a turn that no other rollout of their group has, in groups that do have a
        spread.
        """
        own = [self.calls[call] for call in (self.calls if calls is None else calls)]
        groups = {one.pool: self.zero_reasons[one.pool] for one in own}
        kinds = Counter(groups.values())
        steps = Counter(one.step_reason for one in own)
        return {
            **{STEP_COUNTS[why]: n for why, n in steps.items() if why},
            "groups": len(groups),
            "groups_zero_std": kinds["zero-std"],
            "groups_of_one": kinds["group-of-one"],
            "calls_unpaired": sum(bool(one.zero_reason) and not groups[one.pool] for one in own),
        }


def group(groups: Groups, recipe: Recipe) -> Groups:
    """Return the mean of the group, the rollout itself included (GRPO, arXiv 2402.03300)."""
    return {key: dict.fromkeys(values, mean(list(values.values()))) for key, values in groups.items()}


def rloo(groups: Groups, recipe: Recipe) -> Groups:
    """Return the mean of the *other* rollouts of the group (RLOO, arXiv 2402.14740); 0 in a group of one."""
    out: Groups = {}
    for key, values in groups.items():
        total, others = math.fsum(values.values()), max(len(values) - 1, 1)
        out[key] = {
            rollout: (total - value) / others if len(values) > 1 else 0.0 for rollout, value in values.items()
        }
    return out


def none(groups: Groups, recipe: Recipe) -> Groups:
    """Return 0: the advantage is the credit."""
    return {key: dict.fromkeys(values, 0.0) for key, values in groups.items()}


BASELINES: Mapping[str, Baseline] = {"group": group, "rloo": rloo, "batch": group, "none": none}
"""The built-in baselines by name. ``batch`` is the mean over one group that holds the whole batch, whatever
``group_by`` says but for ``turn``: one value per rollout (and turn)."""


def advantages(
    credited: Sequence[CreditedCall], recipe: Recipe, baselines: Mapping[str, Baseline] = BASELINES
) -> Advantages:
    """Return the advantage of every credited call. ``ValueError`` if the baseline leaves out a value.

    With calls of several policies, each policy is compared with itself, whatever ``group_by`` says.
    """
    group_by = _group_by(credited, recipe)
    pools = {one.call_id: group_key(one, group_by) for one in credited}
    members = grouped(credited, lambda one: pools[one.call_id])
    at: dict[str, GroupKey] = {}
    for pool, of in members.items():
        at.update(_locations(pool, of, by_turn=TURN in group_by))
    values = {key: _values(of) for key, of in grouped(credited, lambda one: at[one.call_id]).items()}
    bases = baselines[recipe.baseline](values, recipe)
    spreads = {pool: _spread(of, at, values) for pool, of in members.items()}
    found = Advantages({}, {pool: zero_reason for pool, (_, zero_reason) in spreads.items()})
    steps = step_advantages(credited, recipe, group_by)
    for one in credited:
        key, pool = at[one.call_id], pools[one.call_id]
        spread, zero_reason = spreads[pool]
        why = _why_zero(zero_reason, values[key], recipe)
        base = _base(bases, key, one.rollout_id, recipe)
        scale = spread + EPSILON if recipe.scale == "std" and not why else 1.0
        value = 0.0 if why else (one.credit - base) / scale
        if not math.isfinite(value):
            raise ValueError(
                f"rollout {one.rollout_id!r}: the advantage of its credit {one.credit:g} over the "
                f"baseline {base:g} is {value}; the rewards of its group are too far apart for floating point"
            )
        step, step_why = steps.get(one.call_id, (0.0, ""))
        found.calls[one.call_id] = Advantage(
            value + step, one.credit, base, scale, key, why, pool, spread, step, step_why
        )
    return found


def _group_by(credited: Sequence[CreditedCall], recipe: Recipe) -> list[str]:
    found = list(recipe.group_by)
    if recipe.baseline == "batch":
        found = ["batch", *([TURN] if TURN in found else [])]
    if "policy" not in found and len({c.policy for c in credited}) > 1:
        found = ["policy", *found]
    return found


def _locations(pool: GroupKey, of: Sequence[CreditedCall], *, by_turn: bool) -> dict[str, GroupKey]:
    """Call id → its location in its group. With ``by_turn`` a group is divided only as far as credits differ
    within its rollouts: it is one location, else each agent is one, else each turn.
    """
    at: dict[str, GroupKey] = {one.call_id: pool for one in of}
    for name in (agent_key, turn_key) if by_turn else ():
        credits = defaultdict(list)
        for one in of:
            credits[one.rollout_id, at[one.call_id]].append(one.credit)
        if all(map(nearly_equal, credits.values())):
            break
        at = {one.call_id: (*pool, name(one)) for one in of}
    return at


def _values(at: Sequence[CreditedCall]) -> dict[str, float]:
    """One value per rollout: the mean credit of its calls at a location."""
    rollouts = grouped(at, lambda one: one.rollout_id)
    return {rollout: mean([one.credit for one in own]) for rollout, own in rollouts.items()}


def _spread(of: Sequence[CreditedCall], at: Mapping[str, GroupKey], values: Groups) -> tuple[float, str]:
    """Return the spread of a group, and why the group gives nothing to learn, if so."""
    centres = {key: mean(list(values[key].values())) for key in {at[one.call_id] for one in of}}
    residuals: dict[str, list[Residual]] = {}
    for one in of:
        key = at[one.call_id]
        if len(values[key]) > 1:
            residual = one.credit - centres[key], len(values[key])
            residuals.setdefault(one.rollout_id, []).append(residual)
    if not residuals:
        return 0.0, "group-of-one"
    return pooled_std(residuals), "zero-std" if _rollouts_agree(of, at, values) else ""


def _rollouts_agree(of: Sequence[CreditedCall], at: Mapping[str, GroupKey], values: Groups) -> bool:
    """Whether the rollouts of a group earned the same: equal credits at every location, or the same turns
    with equal credits call for call.
    """
    compared = grouped(of, lambda one: at[one.call_id]).items()
    if all(nearly_equal([one.credit for one in own]) for key, own in compared if len(values[key]) > 1):
        return True
    rollouts = len({one.rollout_id for one in of})
    by_turn = [_values(own) for own in grouped(of, turn_key).values()]
    return all(len(turn) == rollouts and nearly_equal(turn.values()) for turn in by_turn)


def _why_zero(group_reason: str, values: Mapping[str, float], recipe: Recipe) -> str:
    """Why a call's advantage is 0 by definition; empty if it is not."""
    if recipe.baseline == "none":
        return group_reason if recipe.scale == "std" else ""
    return group_reason or ("group-of-one" if len(values) == 1 else "")


def _base(bases: Groups, key: GroupKey, rollout_id: str, recipe: Recipe) -> float:
    base = bases.get(key, {}).get(rollout_id)
    if base is None or not math.isfinite(base):
        raise ValueError(
            f"baseline {recipe.baseline!r} gave {base} for rollout {rollout_id!r} in group {key}; "
            "it must return a finite number for every value it is shown"
        )
    return base


def step_advantages(
    credited: Sequence[CreditedCall], recipe: Recipe, group_by: Sequence[str]
) -> dict[str, tuple[float, str]]:
    """Return call id → ``step_weight · A^S``, or 0 and the reason why nothing is added; empty for a recipe
    without a ``step_weight``.
    """
    found: dict[str, tuple[float, str]] = {}
    states: dict[GroupKey, list[tuple[str, float]]] = defaultdict(list)
    for one in credited if recipe.step_weight else ():
        if one.step is None or one.step.value is None:
            found[one.call_id] = 0.0, "no-return"
        else:
            key = (*group_key(one, group_by), agent_of(one), one.step.state)
            states[key].append((one.call_id, one.step.value))
    for of in states.values():
        returns = [value for _, value in of]
        centre, same, why = mean(returns), nearly_equal(returns), "state-of-one" if len(of) == 1 else ""
        scale = std(returns) + EPSILON if recipe.scale == "std" else 1.0
        for call_id, value in of:
            found[call_id] = 0.0 if same else recipe.step_weight * (value - centre) / scale, why
    return found
