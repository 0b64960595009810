"""Baselines: credit → advantage.

A baseline sees *one value per (rollout, group key)*, the mean credit of the rollout's calls there, so that a
long rollout does not outvote a short one. Then ``advantage(call) = credit(call) - baseline``, divided by ``s
+ 1e-6`` if ``recipe.scale == "std"``; ``s`` is the *sample* standard deviation (n - 1) of the group's values.
The GRPO paper (arXiv 2402.03300) writes std without saying which; verl and TRL take ``torch.std``, the sample
one.

Invariant: with a baseline, a group of one value and a group whose values are all equal give advantage 0, and
are counted: there is nothing to compare. ``none`` compares nothing and zeroes nothing, unless it is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentlightning.types import Call, Recipe, Rollout

EPSILON = 1e-6
"""Added to the standard deviation, as verl and the GRPO reference implementations do."""

GroupKey = tuple[str, ...]
Groups = dict[GroupKey, dict[str, float]]
"""Group key → rollout id → value, in the order of the records."""
Baseline = Callable[[Groups, Recipe], Groups]
"""The groups' values → a baseline for each of them, under the same keys."""


class Credited(NamedTuple):
    """A call that will be trained, with the number its rule gave."""

    rollout: Rollout
    call: Call
    credit: float


class Advantage(NamedTuple):
    """How one call's advantage came about: ``value = (credit - baseline) / scale``, or 0 where ``flat``."""

    value: float
    credit: float
    baseline: float
    scale: float
    group: GroupKey
    flat: str
    """Why it is 0 by definition: ``group-of-one``, ``zero-spread``, or empty."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantages of a batch, by call id, and what the groups looked like."""

    calls: dict[str, Advantage] = field(default_factory=dict)
    groups: int = 0
    groups_of_one: int = 0
    groups_zero_spread: int = 0
    flats: dict[GroupKey, str] = field(default_factory=dict)
    """Group → why it has nothing to compare: ``group-of-one``, ``zero-spread``, or empty."""


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
``group_by`` says: one value per rollout."""


def advantages(
    credited: Sequence[Credited], recipe: Recipe, baselines: Mapping[str, Baseline] = BASELINES
) -> Advantages:
    """Advantage of every credited call. ``ValueError`` if the baseline forgets a value it was shown.

    Where the calls are of several policies, each policy is compared with itself, whatever ``group_by`` says.
    """
    group_by = ["batch"] if recipe.baseline == "batch" else recipe.group_by
    if "policy" not in group_by and len({c.call.policy for c in credited}) > 1:
        group_by = ["policy", *group_by]
    keys = {c.call.call_id: group_key(c.rollout, c.call, group_by) for c in credited}
    groups = _values(credited, keys)
    bases = baselines[recipe.baseline](groups, recipe)
    spreads = {key: _spread(list(values.values())) for key, values in groups.items()}
    compares = recipe.baseline != "none" or recipe.scale == "std"
    out: dict[str, Advantage] = {}
    for rollout, call, credit in credited:
        key = keys[call.call_id]
        base = _base(bases, key, rollout.rollout_id, recipe)
        flat = spreads[key].flat if compares else ""
        scale = spreads[key].std + EPSILON if recipe.scale == "std" and not flat else 1.0
        value = 0.0 if flat else (credit - base) / scale
        if not math.isfinite(value):
            raise ValueError(
                f"rollout {rollout.rollout_id!r}: the advantage of its credit {credit:g} over the baseline "
                f"{base:g} is {value}; the rewards of its group are too far apart for floating point"
            )
        out[call.call_id] = Advantage(value, credit, base, scale, key, flat)
    flats = {key: spread.flat for key, spread in spreads.items()}
    kinds = list(flats.values())
    return Advantages(out, len(groups), kinds.count("group-of-one"), kinds.count("zero-spread"), flats)


def group_key(rollout: Rollout, call: Call, group_by: Sequence[str]) -> GroupKey:
    """The group of a call, e.g. ``("group=7", "side=wolf")``.

    ``group``: rollouts sampled together, else those of one task, else the rollout alone; ``task``;
    ``policy``; ``batch``: everything; any other word is a tag, and calls without it form a group of their
    own.
    """
    return tuple(_part(rollout, call, name) for name in group_by)


def mean(values: Sequence[float]) -> float:
    """The mean, within the values' own bounds: equal values have exactly that mean, rounding or not."""
    try:
        centre = math.fsum(values) / len(values)
    except OverflowError:  # of the sum; the mean itself lies between its values
        centre = math.fsum(value / len(values) for value in values)
    return min(max(centre, min(values)), max(values))


def std(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    centre = mean(values)
    # hypot scales before it squares, so that a huge reward is a huge deviation and no overflow
    return math.hypot(*(value - centre for value in values)) / math.sqrt(len(values) - 1)


class _Spread(NamedTuple):
    std: float
    flat: str


def _spread(values: Sequence[float]) -> _Spread:
    """Equal means equal up to rounding (1e-12 of the largest): means of equal credits may differ in the last
    bit."""
    if len(values) < 2:
        return _Spread(0.0, "group-of-one")
    equal = max(values) - min(values) <= 1e-12 * max(map(abs, values))
    return _Spread(std(values), "zero-spread" if equal else "")


def _values(credited: Sequence[Credited], keys: Mapping[str, GroupKey]) -> Groups:
    """One value per (rollout, key): the mean credit of its calls there."""
    credits: dict[GroupKey, dict[str, list[float]]] = {}
    for rollout, call, credit in credited:
        credits.setdefault(keys[call.call_id], {}).setdefault(rollout.rollout_id, []).append(credit)
    return {key: {rollout: mean(values) for rollout, values in of.items()} for key, of in credits.items()}


def _base(bases: Groups, key: GroupKey, rollout_id: str, recipe: Recipe) -> float:
    base = bases.get(key, {}).get(rollout_id)
    if base is None or not math.isfinite(base):
        raise ValueError(
            f"baseline {recipe.baseline!r} gave {base} for rollout {rollout_id!r} in group {key}; "
            "it must return a finite number for every value it is shown"
        )
    return base


def _part(rollout: Rollout, call: Call, name: str) -> str:
    if name == "batch":
        return "batch"
    if name == "policy":
        return f"policy={call.policy}"
    if name == "task":
        return f"task={rollout.task_id}" if rollout.task_id is not None else f"rollout={rollout.rollout_id}"
    if name == "group":
        return f"group={rollout.group_id}" if rollout.group_id is not None else _part(rollout, call, "task")
    return f"{name}={call.tags[name]}" if name in call.tags else f"no {name}"
