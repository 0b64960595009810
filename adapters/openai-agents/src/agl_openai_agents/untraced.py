"""Record agents and tools while the SDK's tracing is disabled, and keep attempt keys from its exporter.

With tracing disabled the SDK makes no-op spans, in the same places and under the same names. The bridge
listens to them directly, and the SDK still exports nothing. The exporter would send the client's key to the
vendor, so it must not get an attempt's key.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from agents import tool_context
from agents.items import ToolApprovalItem
from agents.tracing import get_current_span, get_trace_provider
from agents.tracing.processors import BackendSpanExporter
from agents.tracing.provider import DefaultTraceProvider, SynchronousMultiTracingProcessor
from agents.tracing.spans import NoOpSpan

from agentlightning import semconv
from agentlightning.capture.adapter import AdapterInstrumentor
from agentlightning.capture.delivery import COUNTS
from agentlightning.keys import PREFIX
from agl_openai_agents.bridge import BRIDGE

Wrapped = Callable[..., Any]
WITHHELD = "openai-agents-export-withheld"
"""Count of traces and spans that were not sent to the vendor, to withhold an attempt's key."""


EXPORT = "_export_with_deadline" if "_export_with_deadline" in vars(BackendSpanExporter) else "export"


def patch_all(adapter: AdapterInstrumentor) -> None:
    """Patch the SDK's no-op spans, its exporter and its tool contexts."""
    adapter.patch(NoOpSpan, "start", _start)
    adapter.patch(NoOpSpan, "finish", _finish)
    adapter.patch(NoOpSpan, "set_error", _set_error)
    adapter.patch(DefaultTraceProvider, "set_processors", _keep_bridge)
    adapter.patch(BackendSpanExporter, EXPORT, _skip_export)
    runs = getattr(import_module("agents.run_internal.tool_execution"), "_FunctionToolBatchExecutor", None)
    missing = "openai-agents-approvals-unmarked"
    adapter.patch_private(runs, "_maybe_execute_tool_approval", _approval, missing)
    adapter.patch(tool_context.ToolContext, "from_agent_context", _tool_call_id)


def remove_bridge() -> None:
    """Remove the bridge from the processors. Where it cannot be removed, it is inert."""
    processors = getattr(get_trace_provider(), "_multi_processor", None)
    if isinstance(processors, SynchronousMultiTracingProcessor):
        others = [one for one in processors._processors if one is not BRIDGE]
        processors.set_processors(others)


def _start(wrapped: Wrapped, span: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    BRIDGE.on_span_start(span)
    wrapped(*args, **kwargs)


def _finish(wrapped: Wrapped, span: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    BRIDGE.on_span_end(span)
    wrapped(*args, **kwargs)


def _set_error(wrapped: Wrapped, span: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if (frame := BRIDGE.frame(span)) is not None:
        frame.error = kwargs["error"] if "error" in kwargs else args[0]
    wrapped(*args, **kwargs)


def _keep_bridge(wrapped: Wrapped, provider: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add the bridge again after the user has replaced all processors."""
    wrapped(*args, **kwargs)
    provider.register_processor(BRIDGE)


def _skip_export(wrapped: Wrapped, exporter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not str(exporter.api_key or "").startswith(PREFIX):
        wrapped(*args, **kwargs)
        return
    items = kwargs["items"] if "items" in kwargs else args[0]
    COUNTS.add(WITHHELD, len(items))


async def _approval(wrapped: Wrapped, runs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Mark the span of a call that waits for a person: it runs within another span, once it may."""
    result = await wrapped(*args, **kwargs)
    waits = isinstance(getattr(result, "run_item", None), ToolApprovalItem)
    if waits and (frame := BRIDGE.frame(get_current_span())) is not None:
        frame.span.set_attribute(semconv.INTERRUPTED, True)
        frame.span.set_attribute(semconv.OPERATION_NAME, semconv.AWAIT_APPROVAL)
    return result


def _tool_call_id(wrapped: Wrapped, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add the call's id, which the SDK's tool span lacks. A tool's context is made within that span."""
    made = wrapped(*args, **kwargs)
    frame = BRIDGE.frame(span := get_current_span())
    if frame is not None and span is not None and span.span_data.type == "function":
        frame.span.set_attribute(semconv.TOOL_CALL_ID, str(made.tool_call_id))
    return made
