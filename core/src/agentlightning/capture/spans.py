"""The spans that adapters make of agents' turns and tool calls.

:class:`AgentSpan` serves frameworks whose agents and tools are functions that an adapter can wrap. Inside it,
model calls, rewards, tools and threads see its agent. Invariant: it is current while its own code runs, also
in a generator that is read elsewhere, and never while the reader works between two items. A span that never
started, or started outside an attempt, is not recorded.

:class:`EventSpan` serves frameworks that only send events when something begins and ends. Their events come
in other tasks and threads than the work itself, so nothing can be attached to a context: a span knows its
parent, and :data:`~agentlightning.capture.identity.CALLER_SOURCES` finds it from the work. Invariant: it
belongs to the attempt it began in, and is delivered at most once, when it has a title.

:func:`tool_call` serves frameworks that make ``execute_tool`` spans of their own, which have the tool's name
and the call's id, and end before the result is known. It holds such a span back, completes it with arguments
and result, and delivers it at the end of the block. A call that reaches no tool (malformed arguments, an
unknown name) gets a span of its own. Invariant: a call leaves one span, and none outside an attempt.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from typing import Any, Self

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture import delivery
from agentlightning.capture.call_hooks import CallHooks, hooked_async_generator, hooked_generator
from agentlightning.capture.context import AttemptContext, attached, capture_tags, current_attempt
from agentlightning.capture.identity import (
    CALLER,
    Caller,
    RemoteParentSpan,
    caller_context,
    caller_tags,
    current_span,
    framework_tags,
    inherited_tags,
    parent_ids,
    span_number,
    tags_of,
)
from agentlightning.capture.records import describe_error
from agentlightning.types import Span, Tags


class AgentSpan(CallHooks):
    """``tags``: the tags of the model calls inside. A tool has the tags of the agent that calls it."""

    def __init__(self, operation: str, name: str, attributes: dict[str, Any], tags: Tags) -> None:
        self.operation, self.name, self.attributes, self.tags = operation, name, attributes, tags
        self.span: trace.Span | None = None
        self._begin = True
        self._on_item: Callable[[Any], None] = _nothing

    @classmethod
    def for_agent(cls, name: str, **tags: str) -> Self:
        """Make the span of an agent's turn. ``tags``: what else its framework knows, e.g. ``node="plan"``."""
        return cls("invoke_agent", name, {}, inherited_tags({"agent": name, **tags}))

    @classmethod
    def for_tool(cls, name: str, call_id: str | None, arguments: str) -> Self:
        """Make the span of a tool call. ``arguments``: as the model wrote them, if the framework keeps that
        text."""
        attributes = {semconv.TOOL_NAME: name, semconv.TOOL_CALL_ARGUMENTS: arguments}
        if call_id is not None:
            attributes[semconv.TOOL_CALL_ID] = call_id
        return cls("execute_tool", name, attributes, framework_tags())

    @contextmanager
    def run(self) -> Iterator[Self]:
        """Record the span from its start to its end, around a call or an ``await``. Around a ``yield``, use
        :meth:`wrap_stream`."""
        with self.around(), self.activate():
            yield self

    @contextmanager
    def around(self) -> Iterator[None]:
        """Start the span, and end it with the block, with an error if the block raises."""
        if self._begin:
            self.start()
        try:
            yield
        except BaseException as error:
            self.set_error(error)
            raise
        finally:
            self.end()

    def start(self) -> Self:
        """Begin the span, below the current one."""
        if (context := current_attempt()) is None:
            return self
        self.span = trace.get_tracer("agentlightning").start_span(
            f"{self.operation} {self.name}",
            context=trace.set_span_in_context(current_span()),
            attributes={
                semconv.OPERATION_NAME: self.operation,
                **delivery.identity_attributes(context, self.tags),
                **self.attributes,
            },
        )
        return self

    def activate(self) -> AbstractContextManager[None]:
        """Make the span current within the block."""
        return attached(caller_context(self.tags, self.span))

    def wrap_awaitable(self, work: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that awaits ``work`` within the span: for functions that return at once. The
        coroutine keeps the tags of ``tagged`` and of the decorated agent that hold at this call."""
        tags = capture_tags()

        async def awaited() -> Any:
            with tags(), self.run():
                return await work

        return awaited()

    def wrap_stream(
        self,
        source: AsyncGenerator[Any, Any],
        *,
        begin: bool = False,
        on_item: Callable[[Any], None] | None = None,
    ) -> AsyncGenerator[Any, Any]:
        """Yield the items of ``source``, run its code within the span, and end the span with it. ``begin``:
        start the span too. ``on_item``: called with each item before the reader gets it."""
        self._begin, self._on_item = begin, on_item or _nothing
        return hooked_async_generator(lambda: source, lambda args, kwargs: self)()

    def wrap_generator(
        self, source: Generator[Any, Any, Any], *, begin: bool = False
    ) -> Generator[Any, Any, Any]:
        """As :meth:`wrap_stream` for a plain generator; what ``source`` returns is returned."""
        self._begin = begin
        return hooked_generator(lambda: source, lambda args, kwargs: self)()

    def on_item(self, item: Any) -> None:
        """Hand an item of a stream on before its reader gets it."""
        self._on_item(item)

    @asynccontextmanager
    async def wrap_context_manager(
        self, manager: AbstractAsyncContextManager[Any]
    ) -> AsyncGenerator[Any, None]:
        """Enter and leave ``manager`` within the span. The block between them is the user's."""
        with self.around():
            with self.activate():
                inside = await manager.__aenter__()
            try:
                yield inside
            except BaseException as error:
                with self.activate():
                    if not await manager.__aexit__(type(error), error, error.__traceback__):
                        raise
            else:
                with self.activate():
                    await manager.__aexit__(None, None, None)

    def set_result(self, text: str, failed: bool = False) -> None:
        """Record a tool's result, as the model will read it."""
        if self.span is not None:
            self.span.set_attribute(semconv.TOOL_CALL_RESULT, text)
            if failed:
                self.span.set_status(trace.StatusCode.ERROR, text[:2000])

    def set_error(self, error: BaseException) -> None:
        """Mark the span as failed. GeneratorExit, a reader who stops reading, is no error."""
        if self.span is not None and not isinstance(error, GeneratorExit):
            self.span.set_status(trace.StatusCode.ERROR, describe_error(error))

    def set_interrupted(self) -> None:
        """Record that a tool call did not run to its end, and will run again once a person has agreed."""
        if self.span is not None:
            self.span.set_attribute(semconv.INTERRUPTED, True)
            self.span.set_attribute(semconv.OPERATION_NAME, semconv.AWAIT_APPROVAL)

    def end(self) -> None:
        """End the span."""
        if self.span is not None:
            self.span.end()


def _nothing(item: Any) -> None:
    """Take an item of a stream that nobody listens to."""


@dataclass(slots=True, eq=False, kw_only=True, weakref_slot=True)
class EventSpan:
    """A span that begins when it is made. Its parent is ``parent`` or OpenTelemetry's current span, whichever
    is nearer; it has the tags of the caller there.
    """

    context: AttemptContext
    parent: Self | None = None
    title: str | None = None
    """The span's name. ``None``: the span is not recorded, and its children get its parent."""
    attributes: dict[str, Any] = field(default_factory=dict)
    tags: Tags = field(default_factory=dict)
    trace_id: str = field(init=False)
    parent_id: str | None = field(init=False, default=None)
    otel_parent: int = field(init=False, default=0)
    """Id of OpenTelemetry's current span when this span began; one that became current later is nearer."""
    outer: Caller | None = field(init=False, default_factory=CALLER.get)
    """The caller in OpenTelemetry's context when this span began; one that was named later is nearer."""
    span_id: str = field(init=False, default_factory=lambda: secrets.token_hex(8))
    start: float = field(init=False, default_factory=time.time)

    def __post_init__(self) -> None:
        live = trace.get_current_span()
        above = live.get_span_context()
        if self.parent is not None and self.parent.sees_no_nearer_span(live):
            self.otel_parent, self.trace_id = self.parent.otel_parent, self.parent.trace_id
            self.parent_id = self.parent.child_parent_id
        elif above.is_valid:
            self.otel_parent, self.trace_id = above.span_id, f"{above.trace_id:032x}"
            self.parent_id = f"{above.span_id:016x}"
        else:
            self.trace_id = delivery.attempt_trace_id(self.context.attempt_id)
        around = None if self.parent is None else self.parent.caller()
        if around is None or not around.is_within(self.outer):
            around = self.outer
        self.tags = {**tags_of(around, live), **self.tags}

    @property
    def child_parent_id(self) -> str | None:
        """The parent id of spans inside."""
        return self.span_id if self.title else self.parent_id

    @property
    def tool(self) -> str | None:
        """The name of the tool that runs here; ``None`` outside tools."""
        if self.attributes.get(semconv.OPERATION_NAME) == "execute_tool":
            return str(self.attributes.get(semconv.TOOL_NAME) or "")
        return self.parent.tool if self.parent is not None and not self.title else None

    def sees_no_nearer_span(self, span: trace.Span) -> bool:
        """Return whether ``span``, OpenTelemetry's current one, became current before this span began, or one
        above it."""
        number = span_number(span)
        here = number == self.otel_parent or f"{number:016x}" == self.child_parent_id
        return here or (self.parent is not None and self.parent.sees_no_nearer_span(span))

    def is_within(self, other: Self) -> bool:
        """Return whether this is ``other`` or a part of it."""
        return self is other or (self.parent is not None and self.parent.is_within(other))

    def caller(self) -> Caller:
        """Return the caller of the code inside. Where OpenTelemetry's current span is nearer, that span is
        the parent, and names the agent if it can.
        """
        live = trace.get_current_span()
        if not self.sees_no_nearer_span(live):
            return Caller(self.tags, 0, outer=self.outer)
        parent = None
        if self.child_parent_id is not None:
            agent = self.tags.get("agent")
            number = int(self.child_parent_id, 16)
            parent = RemoteParentSpan(int(self.trace_id, 16), number, agent, self.tool)
        return Caller(self.tags, span_number(live), parent, self.outer)

    def end(self, error: BaseException | None = None, *, failed: str | None = None) -> None:
        """Deliver the span if it has a title. ``failed``: the message of a failure that raised nothing."""
        if self.title is None:
            return
        if error is not None:
            failed = describe_error(error)
            self.attributes[semconv.EXCEPTION_TYPE] = type(error).__name__
        span = delivery.new_span(
            self.context,
            self.title,
            (self.trace_id, self.parent_id),
            {**self.attributes, **delivery.identity_attributes(self.context, self.tags)},
            span_id=self.span_id,
            start=self.start,
            error=failed,
        )
        delivery.deliver(self.context, span)


@contextmanager
def tool_call(name: str, call_id: str, arguments: str) -> Iterator[delivery.PendingToolCall]:
    """Deliver the span of one call at the end of the block, in which the framework executes the call."""
    context = current_attempt()
    call = delivery.PendingToolCall(name, call_id, arguments)
    if context is None:
        yield call
        return
    try:
        with attached(delivery.PENDING.set(call)):
            yield call
    finally:
        if call.span is not None or call.result is not None:
            span = call.span or _tool_span(context, call)
            span.attributes[semconv.TOOL_CALL_ARGUMENTS] = call.arguments
            if call.result is not None:
                span.attributes[semconv.TOOL_CALL_RESULT] = call.result
            if call.failed:
                span.status, span.status_message = "error", (call.result or "")[:2000]
            delivery.deliver(context, span)


def _tool_span(context: AttemptContext, call: delivery.PendingToolCall) -> Span:
    attributes = {
        semconv.OPERATION_NAME: "execute_tool",
        semconv.TOOL_NAME: call.name,
        semconv.TOOL_CALL_ID: call.call_id,
        **delivery.identity_attributes(context, caller_tags()),
    }
    parent = parent_ids(context.attempt_id)
    return delivery.new_span(context, f"execute_tool {call.name}", parent, attributes, start=call.start)
