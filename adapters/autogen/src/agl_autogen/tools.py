"""Complete AutoGen's own ``execute_tool`` spans with the arguments and the result of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlightning.capture.spans import tool_call


async def execute(
    wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``AssistantAgent._execute_tool_call``, which returns the call and its result."""
    requested = kwargs["tool_call"] if "tool_call" in kwargs else args[0]
    with tool_call(requested.name, requested.id, requested.arguments) as call:
        executed = await wrapped(*args, **kwargs)
        call.result, call.failed = str(executed[1].content), bool(executed[1].is_error)
    return executed
