"""Record an agent's turn or a tool call as an OpenTelemetry span.

Use it for frameworks whose agents and tools are functions that an adapter can wrap. Inside the span, model
calls, rewards, tools and threads see its agent. Invariant: the span is current while its own code runs, also
in a generator that is read elsewhere, and never while the reader works between two items. A span that never
started, or started outside an attempt, is not recorded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Self

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.call_hooks import CallHooks, hooked_async_generator, hooked_generator
from agentlightning.capture.context import attached, capture_tags, current_attempt
from agentlightning.capture.delivery import identity_attributes
from agentlightning.capture.identity import caller_context, current_span, framework_tags, inherited_tags
from agentlightning.capture.spans.convert import describe_error
from agentlightning.types import Tags


class AgentSpan:
    """``tags``: the tags of the model calls inside. A tool has the tags of the agent that calls it."""

    def __init__(self, operation: str, name: str, attributes: dict[str, Any], tags: Tags) -> None:
        self.operation, self.name, self.attributes, self.tags = operation, name, attributes, tags
        self.span: trace.Span | None = None

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
        with self._recorded(), self.activate():
            yield self

    @contextmanager
    def _recorded(self, begin: bool = True) -> Iterator[None]:
        """End the span with the block, with an error if the block raises. ``begin``: start it too."""
        if begin:
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
                **identity_attributes(context, self.tags),
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
        hooks = _SpanHooks(self, begin, on_item)
        return hooked_async_generator(lambda: source, lambda args, kwargs: hooks)()

    def wrap_generator(
        self, source: Generator[Any, Any, Any], *, begin: bool = False
    ) -> Generator[Any, Any, Any]:
        """As :meth:`wrap_stream` for a plain generator; what ``source`` returns is returned."""
        hooks = _SpanHooks(self, begin, None)
        return hooked_generator(lambda: source, lambda args, kwargs: hooks)()

    @asynccontextmanager
    async def wrap_context_manager(
        self, manager: AbstractAsyncContextManager[Any]
    ) -> AsyncGenerator[Any, None]:
        """Enter and leave ``manager`` within the span. The block between them is the user's."""
        with self._recorded():
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


class _SpanHooks(CallHooks):
    """Runs a generator's code within ``span``."""

    def __init__(self, span: AgentSpan, begin: bool, on_item: Callable[[Any], None] | None) -> None:
        self._span, self._begin, self._on_item = span, begin, on_item

    def around(self) -> AbstractContextManager[None]:
        return self._span._recorded(self._begin)

    def activate(self) -> AbstractContextManager[None]:
        return self._span.activate()

    def on_item(self, item: Any) -> None:
        if self._on_item is not None:
            self._on_item(item)
