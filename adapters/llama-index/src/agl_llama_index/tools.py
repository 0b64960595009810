"""Record tool calls as spans, below the turn of the agent that asked for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.spans import AgentSpan
from agl_llama_index.turns import TURNS, Turns

Wrapped = Callable[..., Any]


async def call(wrapped: Wrapped, flow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps the step ``call_tool``, whose result has what the model will read, also of a failure."""
    if current_attempt() is None:
        return await wrapped(*args, **kwargs)
    event = kwargs["ev"] if "ev" in kwargs else args[-1]
    arguments = json.dumps(event.tool_kwargs, ensure_ascii=False, default=str)
    with (TURNS.get() or Turns()).activate(), recorded(event, arguments) as span:
        result = await wrapped(*args, **kwargs)
        output = result.tool_output
        span.set_result(str(output.content), failed=bool(output.is_error))
        return result


def recorded(event: Any, arguments: str) -> AbstractContextManager[AgentSpan]:
    """Return the call's span, made within the turn that is current by then."""
    return AgentSpan.for_tool(str(event.tool_name), str(event.tool_id), arguments).run()
