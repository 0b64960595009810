"""The evaluation after training, in a run with a budget: made if the budget allows it, and said where not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentlightning.algorithms.context import Context
from agentlightning.types import Evaluation

Measure = Callable[[str], Awaitable[Evaluation | None]]


async def measure_if_affordable(context: Context, measure: Measure, name: str) -> Evaluation | None:
    """Evaluate with what is left, the part that was kept back included; ``None`` if nothing is."""
    spending = context.spending
    spending.release()
    if (why := spending.why_ended()) is not None:
        context.say(f"the evaluation {name!r} is missing: the budget is spent ({why})")
        return None
    refused = spending.refused
    found = await measure(name)
    if n := spending.refused - refused:
        context.say(f"evaluation {name!r}: {n} calls were refused, the budget is spent; see failed")
    return found
