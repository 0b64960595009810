"""The agents that a converter selects: all that a recipe takes of it. Credit assigns rewards by its own
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentlightning.compat.v0.converters.triplets import TracerTraceToTriplet
from agentlightning.types import Tags, UsageError

Select = str | Sequence[str] | Callable[[Tags], bool] | None


def selection(adapter: Any, select: Select) -> Any:
    """``adapter``'s selection of agents, for the gateway. UsageError for settings that recipes ignore."""
    plain = TracerTraceToTriplet()
    if not isinstance(adapter, TracerTraceToTriplet):
        raise UsageError(
            f"adapter={type(adapter).__name__}: a recipe trains on recorded calls, not on what a converter "
            "makes of spans; give TracerTraceToTriplet(agent_match=…), or your own algorithm (@agl.algo)"
        )
    ignored = sorted(
        name
        for name, value in vars(adapter).items()
        if name != "agent_match" and value != getattr(plain, name)
    )
    if ignored:
        raise UsageError(
            f"adapter: a recipe would ignore {', '.join(ignored)}; its credit rule gives rewards to calls"
        )
    if adapter.agent_match is None:
        return select
    if select is not None:
        raise UsageError(
            "select and the adapter's agent_match both choose the agents that are trained; give one"
        )
    return adapter.selects
