"""Complete Agent Framework's own ``execute_tool`` spans with the arguments and the result of the call.

The framework writes them only where the whole application's telemetry may hold sensitive data. Here they go
to the attempt alone, as the model wrote them and as it will read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agentlightning.capture.delivery import PendingToolCall
from agentlightning.capture.spans import tool_call


async def execute(
    wrapped: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``_auto_invoke_function(function_call_content, …)``, which returns the result as content."""
    content = kwargs["function_call_content"] if "function_call_content" in kwargs else args[0]
    requested = getattr(content, "function_call", None) or content  # an approved call is inside its approval
    with tool_call(str(requested.name), str(requested.call_id), _text(requested.arguments)) as call:
        try:
            result = await wrapped(*args, **kwargs)
        except Exception as error:  # middleware may end the loop and hand the result over this way
            _read(call, getattr(error, "result", None))
            raise
        _read(call, result)
    return result


def _read(call: PendingToolCall, result: Any) -> None:
    if getattr(result, "type", None) == "function_result":
        call.result, call.failed = _text(result.result), result.exception is not None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
