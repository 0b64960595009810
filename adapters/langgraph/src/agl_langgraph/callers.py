"""Remember the agents whose tool calls the nodes of a graph execute.

Tools run in a node of their own. Their caller is the agent whose model answered with the call's id.
Invariant: the table is bounded; a forgotten call belongs to its node.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from agl_langchain.runs import Run

_REMEMBERED = 65_536
CALLERS: OrderedDict[tuple[str, str], str] = OrderedDict()
"""(attempt, tool call) → agent."""


def remember_callers(run: Run, response: Any) -> None:
    """Remember the agent of the tool calls in a model's answer."""
    if (agent := run.tags.get("agent")) is None:
        return
    for generation in (one for many in response.generations for one in many):
        for call in getattr(getattr(generation, "message", None), "tool_calls", None) or ():
            if call.get("id"):
                CALLERS[run.context.attempt_id, call["id"]] = agent
    while len(CALLERS) > _REMEMBERED:
        CALLERS.popitem(last=False)


def caller(run: Run) -> str | None:
    """Return the agent whose tool call this run executes."""
    return CALLERS.get((run.context.attempt_id, run.call_id)) if run.call_id else None
