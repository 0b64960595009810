"""How much a policy can gain on the held-out tasks: its reward beside those of scripted policies."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from agentlightning.algorithms.context import Context
from agentlightning.types import Evaluation

LITTLE = 15
"""Points of headroom under which a task teaches a policy nothing."""


class Measure(Protocol):
    """Evaluates a policy on the held-out tasks, at most ``limit`` of them."""

    def __call__(self, name: str, policy: str, limit: int) -> Awaitable[Evaluation | None]: ...


async def measure_headroom(
    context: Context, before: Evaluation | None, measure: Measure, tasks: int
) -> dict[str, float]:
    """Return and print the rewards of the present policy and of the scripted ones, e.g. an oracle and chance,
    the latter on at most ``tasks`` tasks; nothing without scripted policies.
    """
    if before is None or not context.headroom:
        return {}
    found = {"policy": before.reward}
    for name in context.headroom:
        if evaluation := await measure(name, policy=name, limit=tasks):
            found[name] = evaluation.reward
    room = 100 * (found.get("oracle", 1.0) - before.reward)
    scores = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    context.say(f"Headroom: {scores} → {room:.0f} points to gain")
    if room < LITTLE:
        context.say(f"Under {LITTLE} points of headroom: this task will teach this policy nothing.")
    return found
