"""The model's side of the adapter contract: one script that serves a tool agent, a team, structured answers,
and faults on demand.

What the model says depends on what it was sent, so that every conversation has its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

from agentlightning.testing import Reply, tool_call
from agentlightning.testing.template import text_of

TOOL = "add"
SOLVER = "solver"
TEAM = ("writer", "critic")
ARGUMENTS = '{"a": 17,  "b":25}'
"""Spacing that ``json.dumps`` would not produce: re-serialising it changes the next prompt."""
TYPED = '{"value":  42}'
"""A structured answer, spaced likewise."""


def say(body: dict[str, Any]) -> Any:
    """A tool call while there is a tool and no result of it yet, then an answer that quotes the last
    message; of the asked form, where one is asked for. A tool that is not ``add`` is a form too."""
    messages = body["messages"]
    last = messages[-1]
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if tools and last["role"] != "tool":
        return tool_call(TOOL, ARGUMENTS) if TOOL in tools else tool_call(tools[0], TYPED)
    if body.get("response_format", {}).get("type") in ("json_schema", "json_object"):
        return TYPED
    system = text_of(messages[0].get("content")) if messages[0]["role"] == "system" else ""
    return f"{system[:40]} · {len(messages)} · {text_of(last.get('content'))[-60:]}"


class Failing:
    """Answers the first requests with ``statuses``, then as :func:`say` does. Retries are asked for at
    once."""

    def __init__(self, *statuses: int, forever: bool = False) -> None:
        self._statuses: Iterator[int] = chain(statuses, repeat(statuses[-1] if forever else 200))

    def __call__(self, body: dict[str, Any]) -> Any:
        status = next(self._statuses)
        if status == 200:
            return say(body)
        return Reply(status=status, message="not now", headers={"retry-after-ms": "1"})
