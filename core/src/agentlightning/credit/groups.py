"""Group the calls that are compared, by the keys of ``group_by`` and by turns, and measure a group's spread.

A *turn* is the n-th call of an agent within its rollout. Calls that an agent makes at the same turn of
different rollouts stand in much the same place, so their credits show which action was better there; a mean
over whole rollouts would also compare early calls with late ones. ``group_by`` without ``turn`` names the
*group* of a call; turns are locations within the group and share its spread.

That spread is pooled over its residuals ``r_it``, the credit of rollout i's call t minus the location it is
compared with:

    s² = 1 / (n - 1) · Σ_i mean_t( k_t · r_it² )          over the n rollouts, each weighing the same

``k_t = m_t (n - 1) / ((m_t - 1) n)`` gives every location the same n - 1: ``m_t`` rollouts stand behind the
mean that was subtracted, and a mean of few lies closer to each of them. ``k_t`` is 1 where all rollouts do.

Invariants. With one value a rollout ``s`` is the sample standard deviation of the values, to the last digit.
And since every single residual is part of ``s``, none is larger than ``s · sqrt(n · calls of a rollout)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from agentlightning.types import Call, Rollout, Tags

GroupKey = tuple[str, ...]
K = TypeVar("K", bound=Hashable)
TURN = "turn"
"""The key of ``group_by`` for the n-th call of an agent within its rollout."""


class StepReturn(NamedTuple):
    """The state in which a call was made, and the discounted return from it on; ``None``: a reward among
    those that it sums is missing.
    """

    state: str
    value: float | None


class CreditedCall(NamedTuple):
    """A call that will be trained, with its credit: what advantages read of it, without its tokens."""

    rollout: Rollout
    call_id: str
    policy: str
    tags: Tags
    credit: float
    turn: int = 1
    """The number of its request among those of its agent in the rollout, from 1 (:func:`turns`)."""
    step: StepReturn | None = None
    """Where it was made and what followed, for recipes with a ``step_weight``."""

    @classmethod
    def of(
        cls, rollout: Rollout, call: Call, credit: float, turn: int = 1, step: StepReturn | None = None
    ) -> CreditedCall:
        """Return ``call`` with its credit."""
        return cls(rollout, call.call_id, call.policy, call.tags, credit, turn, step)

    @property
    def rollout_id(self) -> str:
        """The rollout that made the call."""
        return self.rollout.rollout_id


def call_order(call: Call) -> tuple[int, int, str]:
    """Sort key of calls within an attempt: by request, then choice."""
    return call.sequence, call.choice, call.call_id


def turns(calls: Iterable[Call]) -> dict[str, int]:
    """Return call id → turn: the number of its request among those of its agent (tag ``agent``) in the
    rollout, from 1. The choices of one request share their turn.
    """
    seen: dict[str, list[int]] = {}
    out: dict[str, int] = {}
    for call in sorted(calls, key=lambda call: call.sequence):
        requests = seen.setdefault(agent_of(call), [])
        if not requests or requests[-1] != call.sequence:
            requests.append(call.sequence)
        out[call.call_id] = len(requests)
    return out


def group_key(one: CreditedCall, group_by: Sequence[str]) -> GroupKey:
    """Return the group of a call, e.g. ``("group=7", "side=wolf")``.

    ``group``: rollouts sampled together, else those of one task, else the rollout alone; ``task``;
    ``policy``; ``batch``: everything; any other word is a tag, and calls without it form a group of their
    own. ``turn`` divides no group: it is a location within one (:func:`turn_key`).
    """
    rollout = one.rollout
    task = f"rollout={rollout.rollout_id}" if rollout.task_id is None else f"task={rollout.task_id}"
    group = task if rollout.group_id is None else f"group={rollout.group_id}"
    keys = {"batch": "batch", "policy": f"policy={one.policy}", "task": task, "group": group}
    tags = {name: f"{name}={one.tags[name]}" if name in one.tags else f"no {name}" for name in group_by}
    return tuple({**tags, **keys}[name] for name in group_by if name != TURN)


def turn_key(one: CreditedCall) -> str:
    """Return the turn of a call, e.g. ``turn=wolf 3``: the third call of the agent ``wolf``."""
    return f"{TURN}={' '.join(filter(None, (agent_of(one), str(one.turn))))}"


def agent_key(one: CreditedCall) -> str:
    """Return the agent of a call as a key, e.g. ``agent=wolf``."""
    return f"agent={agent_of(one)}" if agent_of(one) else "no agent"


def grouped(
    credited: Iterable[CreditedCall], key: Callable[[CreditedCall], K]
) -> dict[K, list[CreditedCall]]:
    """Return key → calls with that key, in the order given."""
    out: dict[K, list[CreditedCall]] = {}
    for one in credited:
        out.setdefault(key(one), []).append(one)
    return out


def agent_of(call: Call | CreditedCall) -> str:
    """Return the agent that made a call (tag ``agent``); empty if it has no name."""
    return call.tags.get("agent", "")


ROUNDING = 1e-12
"""Share of the largest value below which a difference is rounding: means of equal credits may differ in the
last bit."""


Residual = tuple[float, int]
"""A credit minus the mean that it is compared with, and the number of rollouts in that mean."""


def mean(values: Sequence[float]) -> float:
    """Return the mean, within the bounds of the values: the mean of equal values is exactly that value."""
    try:
        centre = math.fsum(values) / len(values)
    except OverflowError:  # of the sum; the mean itself lies between its values
        centre = math.fsum(value / len(values) for value in values)
    return min(max(centre, min(values)), max(values))


def std(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    centre = mean(values)
    # hypot scales before it squares, so that a huge reward is a huge deviation and no overflow
    return math.hypot(*(value - centre for value in values)) / math.sqrt(len(values) - 1)


def pooled_std(residuals: Mapping[str, Sequence[Residual]]) -> float:
    """Return the spread of a group; 0 for fewer than two rollouts. ``residuals``: rollout → its residuals,
    without those of locations that no other rollout has.
    """
    n = len(residuals)
    if n < 2:
        return 0.0
    return math.hypot(*(_root_mean_square(of, n) for of in residuals.values())) / math.sqrt(n - 1)


def nearly_equal(values: Collection[float]) -> bool:
    """Whether values are the same up to rounding."""
    return max(values) - min(values) <= ROUNDING * max(map(abs, values))


def _root_mean_square(residuals: Sequence[Residual], n: int) -> float:
    """Root of the mean square of one rollout's residuals, within their own bounds: equal residuals have
    exactly that size.
    """
    sizes = [abs(value) * math.sqrt((m * (n - 1)) / ((m - 1) * n)) for value, m in residuals]
    root = math.hypot(*sizes) / math.sqrt(len(sizes))
    return min(max(root, min(sizes)), max(sizes))
