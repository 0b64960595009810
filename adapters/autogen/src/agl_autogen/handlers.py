"""Name the agents of ``autogen-core``: whoever handles a message makes the model calls of that time.

An agent of the message runtime has a type, by which others send it messages: that is its name. Agents of
one type differ by their key, which is a tag. The members of an agentchat team are such agents too, and known
by their team.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.identity import agent_tags
from agl_autogen.teams import member_tags


async def on_message(
    wrapped: Callable[..., Any], handler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``BaseAgent.on_message``: an agent, a participant of a team or its manager handles a message."""
    if current_attempt() is None:
        return await wrapped(*args, **kwargs)
    kind, key = str(handler.id.type), str(handler.id.key)
    own = {"agent": kind} if key == "default" else {"agent": kind, "key": key}
    with agent_tags(**(member_tags(kind) or own)):
        return await wrapped(*args, **kwargs)
