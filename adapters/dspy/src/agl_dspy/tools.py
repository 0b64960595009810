"""Record tool calls as spans. DSPy keeps arguments parsed, and gives a call no id that its tool gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.spans import AgentSpan

Wrapped = Callable[..., Any]


def call(wrapped: Wrapped, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Tool.__call__``."""
    with running(tool, kwargs) as told:
        result = wrapped(*args, **kwargs)
        told.append(result)
        return result


async def acall(wrapped: Wrapped, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Tool.acall``."""
    with running(tool, kwargs) as told:
        result = await wrapped(*args, **kwargs)
        told.append(result)
        return result


@contextmanager
def running(tool: Any, arguments: dict[str, Any]) -> Iterator[list[Any]]:
    """Record a tool call within the block, which tells its result. DSPy's own ``finish`` and ``submit``, by
    which an agent ends its turn, are none.
    """
    told: list[Any] = []
    if current_attempt() is None or str(getattr(tool.func, "__module__", "")).startswith("dspy.predict."):
        yield told
        return
    with AgentSpan.for_tool(str(tool.name), None, as_text(arguments)).run() as span:
        try:
            yield told
        except Exception as error:
            span.set_result(str(error), failed=True)
            raise
        span.set_result(as_text(told[0]))


def as_text(value: Any) -> str:
    """Return arguments, or a result, as DSPy writes values into prompts."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
