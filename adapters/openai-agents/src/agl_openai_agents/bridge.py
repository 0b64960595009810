"""Make OpenTelemetry spans of the SDK's spans: agents, tools, handoffs and guardrails.

The SDK begins and ends a span in the context of the code that it describes. For the same time its
OpenTelemetry span is the current one, and the parent of model calls, rewards and nested agents. Invariant: a
span that became current here is no longer current after the SDK's span has ended, unless it ended in another
task (an abandoned stream), whose context cannot be changed from here.
"""

from __future__ import annotations

from contextvars import Token
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from agents.tracing import TracingProcessor
from opentelemetry import context as otel, trace
from opentelemetry.trace import Status, StatusCode

from agentlightning import semconv
from agentlightning.capture.context import detach
from agentlightning.capture.identity import caller_context, framework_tags, inherited_tags

HANDOFF_FROM, HANDOFF_TO = "agl.handoff.from", "agl.handoff.to"
GUARDRAIL_TRIGGERED = "agl.guardrail.triggered"

_OPERATIONS = {
    "agent": "invoke_agent",
    "function": "execute_tool",
    "handoff": "handoff",
    "guardrail": "guardrail",
}
"""Operation of each kind of the SDK's spans that is recorded. Turns, tasks and generations add nothing to the
model calls."""


@dataclass(slots=True, eq=False)
class Frame:
    """One of the SDK's spans in progress: our span, and the token that detaches it."""

    span: trace.Span
    token: Token[otel.Context]
    error: Any = None


class Bridge(TracingProcessor):  # type: ignore[misc]
    """A processor beside the user's own. While ``active`` is false it does nothing."""

    def __init__(self) -> None:
        self.active = False
        self._frames: WeakKeyDictionary[Any, Frame] = WeakKeyDictionary()

    def on_trace_start(self, trace: Any) -> None:
        """Do nothing: the agents tell runs apart."""

    def on_trace_end(self, trace: Any) -> None:
        """Do nothing: the bridge keeps nothing for a trace."""

    def on_span_start(self, span: Any) -> None:
        """Begin an OpenTelemetry span below the current one, and make it current."""
        data = span.span_data
        if not self.active or (operation := _OPERATIONS.get(data.type)) is None:
            return
        name = getattr(data, "name", None)
        tags = inherited_tags({"agent": str(name)}) if data.type == "agent" else framework_tags()
        attributes = {semconv.OPERATION_NAME: operation, semconv.PROVIDER_NAME: "openai"}
        if "agent" in tags:
            attributes[semconv.AGENT_NAME] = tags["agent"]
        if data.type == "function":
            attributes[semconv.TOOL_NAME] = str(name)
        started = trace.get_tracer("agl_openai_agents").start_span(
            f"{operation} {name}" if name else operation, attributes=attributes
        )
        self._frames[span] = Frame(started, otel.attach(caller_context(tags, started)))

    def on_span_end(self, span: Any) -> None:
        """End the span, with the call's arguments, result and error."""
        frame = self._frames.pop(span, None)
        if frame is None:
            return
        _complete(frame.span, span.span_data, span.error or frame.error)
        frame.span.end()
        detach(frame.token)  # not where it ended in another task, as abandoned streams do

    def frame(self, span: Any) -> Frame | None:
        """Return the frame of one of the SDK's spans in progress."""
        return self._frames.get(span) if span is not None else None

    def shutdown(self) -> None:
        """Nothing is buffered."""

    def force_flush(self) -> None:
        """Nothing is buffered."""


def _complete(span: trace.Span, data: Any, error: Any) -> None:
    if data.type == "function":
        if data.input is not None:
            span.set_attribute(semconv.TOOL_CALL_ARGUMENTS, str(data.input))
        if data.output is not None:
            span.set_attribute(semconv.TOOL_CALL_RESULT, str(data.output))
    elif data.type == "handoff":
        span.set_attribute(HANDOFF_FROM, str(data.from_agent))
        span.set_attribute(HANDOFF_TO, str(data.to_agent))
    elif data.type == "guardrail":
        span.set_attribute(GUARDRAIL_TRIGGERED, bool(data.triggered))
    if error:
        detail = (error.get("data") or {}).get("error")
        span.set_status(
            Status(StatusCode.ERROR, f"{error['message']}: {detail}" if detail else error["message"])
        )


BRIDGE = Bridge()
