"""Record tool calls as spans, by the framework's callbacks around tools.

Google ADK runs each call in an asyncio task of its own, which begins with these callbacks, whether or not
plugins are registered. So what is attached there is the tool's context and ends with its task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import context as otel

from agentlightning.capture.identity import caller_context
from agentlightning.capture.spans import AgentSpan
from agl_google_adk.turns import OPEN_TOOLS, as_text

Wrapped = Callable[..., Any]


async def before(wrapped: Wrapped, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``PluginManager.run_before_tool_callback``: the call begins."""
    tools, call_id = OPEN_TOOLS.get(), str(kwargs["tool_context"].function_call_id)
    if tools is not None and call_id not in tools:
        span = AgentSpan.for_tool(str(kwargs["tool"].name), call_id, as_text(kwargs["tool_args"])).start()
        tools[call_id] = span
        otel.attach(caller_context(span.tags, span.span))
    return await wrapped(*args, **kwargs)


async def failed(wrapped: Wrapped, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``PluginManager.run_on_tool_error_callback``. What a callback answers instead of the error comes
    with the response.
    """
    if span := (OPEN_TOOLS.get() or {}).get(str(kwargs["tool_context"].function_call_id)):
        span.set_result(str(kwargs["error"]), failed=True)
    return await wrapped(*args, **kwargs)
