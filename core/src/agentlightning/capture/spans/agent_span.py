"""An agent's turn or a tool call as an OpenTelemetry span.

For frameworks whose agents and tools are functions that an adapter can wrap. Inside the span its agent is
named: to model calls, rewards, tools and threads. Invariant: the span is current while its own code runs,
also in a generator that is read elsewhere, and never across what the reader does between two items. A span
that never started, or started outside an attempt, is not recorded.
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
from agentlightning.capture.identity import caller_context, current_span, framework_tags, inherited_tags
from agentlightning.types import Tags


class AgentSpan:
    """``tags``: of the model calls inside; those of a tool are the tags of the agent that calls it."""

    def __init__(self, operation: str, name: str, attributes: dict[str, Any], tags: Tags) -> None:
        self.operation, self.name, self.attributes, self.tags = operation, name, attributes, tags
        self.span: trace.Span | None = None

    @classmethod
    def for_agent(cls, name: str, **tags: str) -> Self:
        """An agent has its turn. ``tags``: what else its framework knows, e.g. ``node="plan"``."""
        return cls("invoke_agent", name, {}, inherited_tags({"agent": name, **tags}))

    @classmethod
    def for_tool(cls, name: str, call_id: str | None, arguments: str) -> Self:
        """A tool runs; ``arguments`` as the model wrote them, where the framework keeps that."""
        attributes = {semconv.TOOL_NAME: name, semconv.TOOL_CALL_ARGUMENTS: arguments}
        if call_id is not None:
            attributes[semconv.TOOL_CALL_ID] = call_id
        return cls("execute_tool", name, attributes, framework_tags())

    @contextmanager
    def run(self) -> Iterator[Self]:
        """The span from its start to its end, around a call or an ``await``. Not around a ``yield``: that is
        :meth:`wrap_stream`."""
        self.start()
        try:
            with self.activate():
                yield self
        except BaseException as error:
            self.set_error(error)
            raise
        finally:
            self.end()

    def start(self) -> Self:
        """Begin the span, below the current one."""
        if current_attempt() is None:
            return self
        attributes = {semconv.TAG_PREFIX + key: value for key, value in self.tags.items()}
        if "agent" in self.tags:
            attributes[semconv.AGENT_NAME] = self.tags["agent"]
        self.span = trace.get_tracer("agentlightning").start_span(
            f"{self.operation} {self.name}",
            context=trace.set_span_in_context(current_span()),
            attributes={semconv.OPERATION_NAME: self.operation, **attributes, **self.attributes},
        )
        return self

    def activate(self) -> AbstractContextManager[None]:
        """Code within the block belongs to the span."""
        return attached(caller_context(self.tags, self.span))

    def wrap_awaitable(self, work: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
        """``work``, awaited within the span: for functions that return at once. The tags of ``tagged`` and of
        the decorated agent that hold here hold there too."""
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
        """The items of ``source``, whose code runs within the span, to its end. ``begin``: start it too.
        ``on_item``: called with each item, before the reader has it."""
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
        """``manager``, whose entry and exit run within the span; the block between them is the user's."""
        self.start()
        try:
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
        except BaseException as error:
            self.set_error(error)
            raise
        finally:
            self.end()

    def set_result(self, text: str, failed: bool = False) -> None:
        """What a tool gave back, as the model will read it."""
        if self.span is not None:
            self.span.set_attribute(semconv.TOOL_CALL_RESULT, text)
            if failed:
                self.span.set_status(trace.StatusCode.ERROR, text[:2000])

    def set_error(self, error: BaseException) -> None:
        """The code raised. A reader who stops reading is no error."""
        if self.span is not None and not isinstance(error, GeneratorExit):
            self.span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"[:2000])

    def end(self) -> None:
        """End the span."""
        if self.span is not None:
            self.span.end()


class _SpanHooks(CallHooks):
    """A generator whose code runs within ``span``."""

    def __init__(self, span: AgentSpan, begin: bool, on_item: Callable[[Any], None] | None) -> None:
        self._span, self._begin, self._on_item = span, begin, on_item

    def activate(self) -> AbstractContextManager[None]:
        return self._span.activate()

    def begin(self) -> None:
        if self._begin:
            self._span.start()

    def on_error(self, error: BaseException) -> None:
        self._span.set_error(error)

    def finish(self) -> None:
        self._span.end()

    def on_item(self, item: Any) -> None:
        if self._on_item is not None:
            self._on_item(item)
