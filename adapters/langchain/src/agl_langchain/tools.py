"""Record tool calls: arguments, results, handoffs.

Invariant: arguments are recorded as LangChain passed them to the tool, parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentlightning import semconv
from agentlightning.capture.records import jsonable
from agl_langchain.runs import Run, finish

HANDOFF = "agl.handoff"
"""The node to which a tool sent the conversation (``Command(goto=…)``)."""


def began(run: Run, given: Any) -> None:
    """Record that the run executes the tool it is named after."""
    run.title = f"execute_tool {run.name}"
    run.attributes = {semconv.OPERATION_NAME: "execute_tool", semconv.TOOL_NAME: run.name}
    run.attributes[semconv.TOOL_CALL_ARGUMENTS] = _text(given)
    if run.call_id:
        run.attributes[semconv.TOOL_CALL_ID] = run.call_id


def ended(run: Run, output: Any) -> None:
    """Record the tool's answer: a value, a ``ToolMessage``, or a ``Command``, which may hold a message."""
    content, failed = output, None
    if hasattr(output, "goto"):
        if output.goto:
            run.attributes[HANDOFF] = _text(output.goto)
        messages = output.update.get("messages") if isinstance(output.update, Mapping) else None
        content = next((one for one in messages or () if hasattr(one, "tool_call_id")), output.update)
    if hasattr(content, "tool_call_id"):
        failed = _text(content.content) if getattr(content, "status", None) == "error" else None
        content = content.content
    run.attributes[semconv.TOOL_CALL_RESULT] = _text(content)
    run.end(failed=failed)


def raised(run: Run, error: BaseException) -> None:
    """Record the tool's error. The framework decides what its agent is told."""
    run.attributes[semconv.TOOL_CALL_RESULT] = f"{type(error).__name__}: {error}"
    finish(run, error)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
