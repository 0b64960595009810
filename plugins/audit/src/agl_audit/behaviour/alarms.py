"""Alarms: what a run's steps show where the reward alone looks fine, or looks like nothing.

A run's first :data:`WINDOW` steps are compared with its last ones. Three alarms need a reward that rises,
and say that something else went with it: the tools died out, the answers became one and the same, or their
length ran away. The fourth needs a reward that stays flat, and says that the policy narrows all the same.

All thresholds are here. They stand between what rewards that make an agent worse do and what sound runs do,
as ``make behaviour`` measures it (``bench/results/behaviour.json``, ``docs/troubleshooting.md``).

Invariants: pure; an alarm is a function of the steps' metrics alone, so that it can be checked afterwards; a
figure that is missing raises none.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from agentlightning.types.base import Model
from agl_audit.behaviour.rollout import Seen

NAME = "alarms"
"""Their entry in a run's record and summary."""
WINDOW = 5
"""Steps at either end that are compared: fewer, and the chance of a batch of tasks decides."""
RISES = 3.0
"""The reward rises if its mean over the window has grown by so many standard errors of the step means."""
FLAT = 1.0
"""It is flat if it has grown by less than so many: between the two nothing is said."""
TOOLS_USED = 0.25
"""Tool calls a rollout at the beginning, below which there are none to die out."""
TOOLS_LEFT = 0.2
"""Share of the tool calls that is left where tools die out."""
ALIKE = 0.9
"""Share of a step's rollouts, over several tasks, that do the same where answers collapse into one. Tasks
with few answers, such as yes or no, stay below as long as both are right now and then."""
ALIKE_BEFORE = 0.6
"""The most that did the same at the beginning: where all did, nothing has collapsed."""
LONGER = 3.0
"""How many times as long answers are where their length runs away."""
LONGER_AND_CUT, MOSTLY_CUT = 1.5, 0.5
"""It has also run away where they are so many times as long and such a share is cut, so that they cannot be
longer."""
NARROWER = 0.5
"""Share of the entropy that is left where the policy narrows."""
SOLVED = 0.9
"""Where the reward's mean has this share of the range that rewards had in the run, it is flat because there
is nothing left to gain."""


class Alarm(Model):
    """An alarm of a run, with its evidence."""

    kind: str
    """``tools``, ``collapse``, ``length`` or ``entropy``."""
    says: str
    """What happens."""
    first: list[int]
    """The first and the last step, from 1, of the beginning that is compared."""
    last: list[int]
    """Those of the end."""
    figures: dict[str, list[float]]
    """Metric → its means at the beginning and at the end."""
    rollouts: list[str] = []
    """Two rollouts that show it: one of the beginning, one of the end."""

    def text(self) -> str:
        """Return the alarm as one sentence with its numbers."""
        listed = ", ".join(
            f"{WORDS.get(name, name)} {before:.3g} → {now:.3g}"
            for name, (before, now) in self.figures.items()
        )
        shown = f"; look at {' and '.join(self.rollouts)}" if self.rollouts else ""
        return (
            f"{self.says}: {listed} (steps {self.first[0]}–{self.first[1]} and {self.last[0]}–{self.last[1]})"
            f"{shown}"
        )


class Kind(NamedTuple):
    """What raises one kind of alarm."""

    says: str
    metrics: tuple[str, ...]
    rises: bool
    """Whether the reward must rise; otherwise it must be flat."""
    raised: Callable[[Mapping[str, Sequence[float]]], bool]
    """Whether the figures raise it: metric → its means at the beginning and at the end."""
    shows: Callable[[Seen, Counter[str]], float]
    """How much a rollout shows of it, beside the action sequences of its step."""


def _tools_died(figures: Mapping[str, Sequence[float]]) -> bool:
    before, now = figures["behaviour/tool_calls"]
    return before >= TOOLS_USED and now <= TOOLS_LEFT * before


def _collapsed(figures: Mapping[str, Sequence[float]]) -> bool:
    before, now = figures["behaviour/commonest"]
    return before <= ALIKE_BEFORE and now >= ALIKE


def _ran_away(figures: Mapping[str, Sequence[float]]) -> bool:
    (before, now), (_, cut) = figures["behaviour/answer_tokens"], figures["behaviour/cut"]
    return now >= LONGER * before or (now >= LONGER_AND_CUT * before and cut >= MOSTLY_CUT)


def _narrowed(figures: Mapping[str, Sequence[float]]) -> bool:
    before, now = figures["entropy"]
    return before > 0 and now <= NARROWER * before


KINDS: Mapping[str, Kind] = {
    "tools": Kind(
        "the reward rises while tools die out",
        ("behaviour/tool_calls",),
        True,
        _tools_died,
        lambda one, _: -one.behaviour.tool_calls,
    ),
    "collapse": Kind(
        "the reward rises while answers to different tasks become one",
        ("behaviour/commonest",),
        True,
        _collapsed,
        lambda one, actions: actions[one.behaviour.actions],
    ),
    "length": Kind(
        "the reward rises while the length of answers runs away",
        ("behaviour/answer_tokens", "behaviour/cut"),
        True,
        _ran_away,
        lambda one, _: one.behaviour.answer_tokens / max(1, one.behaviour.answers),
    ),
    "entropy": Kind(
        "the reward stays flat while entropy falls",
        ("entropy",),
        False,
        _narrowed,
        lambda one, _: -one.behaviour.surprise / max(1, one.behaviour.sampled_tokens),
    ),
}
WORDS = {
    "reward_mean": "reward",
    "behaviour/tool_calls": "tool calls a rollout",
    "behaviour/commonest": "share of rollouts that do the same",
    "behaviour/answer_tokens": "tokens an answer",
    "behaviour/cut": "share of cut answers",
}
"""Metric → its name in a sentence."""


def alarms_of(record: Mapping[str, Any]) -> list[Alarm]:
    """Return the alarms in the record of a run, in the order in which they were raised."""
    return [*msgspec.convert(record.get(NAME) or {}, dict[str, Alarm]).values()]


def alarms(steps: Mapping[int, Mapping[str, float]]) -> list[Alarm]:
    """Return the alarms that the steps of a run raise, without rollouts. ``steps``: number, from 0, of each
    step → its metrics.
    """
    return [alarm for name in KINDS if (alarm := _alarm(name, steps)) is not None]


def evidence(kind: str, first: Sequence[Seen], last: Sequence[Seen]) -> list[str]:
    """Return two rollouts to look at: the one of the beginning that shows least of it, and the one of the end
    that shows most, of several such the one with the highest reward.
    """
    found: list[str] = []
    for sign, rollouts in ((-1, first), (1, last)):
        acted = [one for one in rollouts if one.behaviour.answers]
        actions = Counter(one.behaviour.actions for one in acted)

        def rank(one: Seen, sign: int = sign, actions: Counter[str] = actions) -> tuple[float, float]:
            reward = -math.inf if one.reward is None else one.reward
            return sign * KINDS[kind].shows(one, actions), reward

        if acted:
            found.append(max(acted, key=rank).rollout)
    return found


def _alarm(name: str, steps: Mapping[int, Mapping[str, float]]) -> Alarm | None:
    kind = KINDS[name]
    wanted = ("reward_mean", *kind.metrics)
    known = [
        step
        for step, metrics in sorted(steps.items())
        if all(math.isfinite(metrics.get(key, math.nan)) for key in wanted)
    ]
    if len(known) < 2 * WINDOW:
        return None
    first, last = known[:WINDOW], known[-WINDOW:]
    rewards = [[steps[step]["reward_mean"] for step in window] for window in (first, last)]
    grown = growth(*rewards)
    if not grown > RISES if kind.rises else not grown < FLAT or _is_solved(rewards[1], steps):
        return None
    figures = {
        key: [statistics.fmean(steps[step][key] for step in window) for window in (first, last)]
        for key in wanted
    }
    if not kind.raised(figures):
        return None
    return Alarm(
        kind=name,
        says=kind.says,
        first=[first[0] + 1, first[-1] + 1],
        last=[last[0] + 1, last[-1] + 1],
        figures=figures,
    )


def growth(before: Sequence[float], now: Sequence[float]) -> float:
    """Return by how many standard errors the mean has grown; of values without spread infinitely many."""
    grown = statistics.fmean(now) - statistics.fmean(before)
    error = math.sqrt(statistics.variance(before) / len(before) + statistics.variance(now) / len(now))
    if error == 0:
        return math.copysign(math.inf, grown) if grown else 0.0
    return grown / error


def _is_solved(now: Sequence[float], steps: Mapping[int, Mapping[str, float]]) -> bool:
    """Whether the reward is near the best that it can be, as far as the run has shown."""
    lowest = min((one["reward_min"] for one in steps.values() if "reward_min" in one), default=math.nan)
    highest = max((one["reward_max"] for one in steps.values() if "reward_max" in one), default=math.nan)
    if not highest > lowest:  # one reward for all: it tells nothing
        return False
    return (statistics.fmean(now) - lowest) / (highest - lowest) >= SOLVED
