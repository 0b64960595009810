"""Record tool calls as spans, around the executor that every call of a model passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]


def stream(wrapped: Wrapped, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``ToolExecutor._stream``, a static async generator whose last event has the result."""
    events = wrapped(*args, **kwargs)
    if current_attempt() is None:
        return events
    use = kwargs["tool_use"] if "tool_use" in kwargs else args[1]
    arguments = json.dumps(use["input"], ensure_ascii=False, default=str)
    span = AgentSpan.for_tool(str(use["name"]), str(use["toolUseId"]), arguments)

    def read(event: Any) -> None:
        if (result := getattr(event, "tool_result", None)) is not None:
            texts = [part.get("text") or json.dumps(part.get("json")) for part in result["content"]]
            span.set_result("\n".join(texts), failed=result["status"] == "error")

    return span.wrap_stream(events, begin=True, on_item=read)
