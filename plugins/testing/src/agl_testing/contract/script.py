"""The script of the contract's model: for a tool agent, a team, structured answers, and failures.

An answer depends on its request, so that every conversation has its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

from agl_testing import Reply, tool_call
from agl_testing.template import text_of

TOOL = "add"
SOLVER = "solver"
TEAM = ("writer", "critic")
ARGUMENTS = '{"a": 17,  "b":25}'
"""``json.dumps`` would space them differently, so serialising them anew changes the next prompt."""
TYPED = '{"value":  42}'
"""A structured answer with such spacing."""


def say(body: dict[str, Any]) -> Any:
    """Return a tool call if the request has a tool and no result yet, else an answer that quotes the last
    message. A request for a structured answer (``response_format``, or a tool other than ``add``) gets one.
    """
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
    """Answers the first requests with ``statuses``, and the others as ``say`` does. Clients may retry at
    once. With ``forever`` the last status repeats.
    """

    def __init__(self, say: Callable[[Any], Any], *statuses: int, forever: bool = False) -> None:
        self._say = say
        self._statuses: Iterator[int] = chain(statuses, repeat(statuses[-1] if forever else 200))

    def __call__(self, body: dict[str, Any]) -> Any:
        status = next(self._statuses)
        if status == 200:
            return self._say(body)
        return Reply(status=status, message="not now", headers={"retry-after-ms": "1"})
