"""The curriculum ``solve_rate``: prefer tasks that the policy solves sometimes.

A group whose rollouts are all right, or all wrong, has no gradient; that of a task with rewards of 0 and 1 is
largest where half of the rollouts are right, because the variance of such a reward is ``p (1 - p)``. How
often a task is solved is measured, by the groups that training rolls out anyway:

    p(task) = right rollouts / rewarded rollouts        of the last ``window`` groups of the task

A task with ``low <= p <= high`` is *inside*. A step draws a share ``1 - explore`` of its tasks from those
inside, at random. The rest *explores*: tasks without a solve rate yet, at random, and when there are none
left, tasks outside, the one first that has not been asked for longest, since what was too hard may be so no
more. Where one kind has too few, the other fills the step.

Deterministic: a choice is a function of the run's seed, the step, and the results that were learned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, model_validator

from agentlightning.algorithms.intervals import RIGHT
from agentlightning.algorithms.tasks import stable_seed
from agentlightning.types.sections import Section


class SolveRateOptions(Section):
    """Options of the curriculum ``solve_rate``."""

    low: float = Field(default=0.1, ge=0, le=1)
    """Least solve rate of a task that is inside."""
    high: float = Field(default=0.9, ge=0, le=1)
    """Greatest solve rate of a task that is inside."""
    window: int = Field(default=2, ge=1, strict=True)
    """How many of a task's last groups its solve rate is measured by."""
    explore: float = Field(default=0.25, ge=0, le=1)
    """Share of a step's tasks that are not drawn from those inside."""
    right: float = Field(default=RIGHT, allow_inf_nan=False)
    """Least reward of a rollout that is right."""

    @model_validator(mode="after")
    def _in_order(self) -> SolveRateOptions:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} is above high = {self.high}: no solve rate is between them")
        return self


@dataclass(slots=True)
class Asked:
    """What is known of a task that was rolled out."""

    step: int
    """When it was asked last."""
    groups: list[tuple[int, int]] = field(default_factory=list)
    """Right and rewarded rollouts of its last groups, oldest first."""

    @property
    def rate(self) -> float | None:
        """Return the solve rate; ``None`` if no rollout was rewarded."""
        rewarded = sum(n for _, n in self.groups)
        return sum(right for right, _ in self.groups) / rewarded if rewarded else None


class SolveRate:
    """The curriculum of a run with ``count`` tasks to train on."""

    def __init__(self, count: int, seed: int, options: SolveRateOptions) -> None:
        self.count, self.seed, self.options = count, seed, options
        self.asked: dict[int, Asked] = {}
        """Position → what is known of the task."""

    def choose(self, step: int, size: int, taken: Sequence[int] = ()) -> list[int]:
        """Return the positions of ``size`` tasks, none of ``taken`` and none twice while there are others."""
        draw = random.Random(stable_seed(self.seed, "curriculum", step, len(taken)))
        found: list[int] = []
        without = set(taken)
        while len(found) < size:
            passed = self._draw(draw, size - len(found), without)
            found += passed
            without = set() if len(passed) + len(without) >= self.count else without | set(passed)
        return found

    def _draw(self, draw: random.Random, size: int, without: set[int]) -> list[int]:
        """Return ``size`` positions, or all there are outside ``without``."""
        inside = sorted(one for one in self._those(self._is_inside) if one not in without)
        draw.shuffle(inside)
        share = self.options.explore * size
        explored = int(share) + (draw.random() < share - int(share))  # on average the share, also of one task
        explored = max(explored, size - len(inside))
        others = self._unseen(draw, explored, without)
        if len(others) < explored:
            outside = [
                one for one in self.asked if one not in without and not self._is_inside(self.asked[one])
            ]
            outside.sort(key=lambda one: (self.asked[one].step, one))
            others += outside[: explored - len(others)]
        return inside[: size - len(others)] + others

    def _unseen(self, draw: random.Random, size: int, without: set[int]) -> list[int]:
        """Return up to ``size`` tasks that were never asked, at random."""
        known = self.asked.keys() | without
        if 2 * len(known) > self.count:  # few are left: list them
            left = [one for one in range(self.count) if one not in known]
            return draw.sample(left, min(size, len(left)))
        found: dict[int, None] = {}
        while len(found) < min(size, self.count - len(known)):
            if (one := draw.randrange(self.count)) not in known:
                found[one] = None
        return list(found)

    def learn(self, step: int, groups: Sequence[tuple[int, Sequence[float | None]]]) -> None:
        """Note the rewards of a step's groups, each with the position of its task; ``None``: not rewarded."""
        for position, rewards in groups:
            rewarded = [reward for reward in rewards if reward is not None]
            known = self.asked.setdefault(position, Asked(step))
            known.step = step
            if rewarded:
                right = sum(reward >= self.options.right for reward in rewarded)
                known.groups = [*known.groups, (right, len(rewarded))][-self.options.window :]

    def metrics(self) -> dict[str, float]:
        """Return how many tasks are inside, too easy, too hard, without a reward, and not asked yet."""
        rates = [one.rate for one in self.asked.values()]
        known = [rate for rate in rates if rate is not None]
        hard = sum(rate < self.options.low for rate in known)
        easy = sum(rate > self.options.high for rate in known)
        return {
            "curriculum/inside": float(len(known) - hard - easy),
            "curriculum/too_easy": float(easy),
            "curriculum/too_hard": float(hard),
            "curriculum/unrewarded": float(len(rates) - len(known)),
            "curriculum/unseen": float(self.count - len(rates)),
        }

    def state(self) -> dict[str, Any]:
        """Return what is known of tasks, as JSON."""
        return {str(position): [one.step, one.groups] for position, one in self.asked.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what is known of tasks from :meth:`state`. Only the last ``window`` groups count."""
        self.asked = {
            int(position): Asked(step, [(right, n) for right, n in groups][-self.options.window :])
            for position, (step, groups) in state.items()
        }

    def _those(self, which: Callable[[Asked], bool]) -> list[int]:
        return [position for position, one in self.asked.items() if which(one)]

    def _is_inside(self, asked: Asked) -> bool:
        return asked.rate is not None and self.options.low <= asked.rate <= self.options.high
