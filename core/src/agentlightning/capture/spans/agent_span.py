"""A stretch of an agent's work as an OpenTelemetry span: an agent has its turn, or a tool runs.

For frameworks whose agents and tools are functions that an adapter can wrap. Inside a scene its agent is
named: to model calls, rewards, tools and threads. Invariant: a scene is current while its own code runs, also
in a generator that is read elsewhere, and never across what the reader does between two items. A scene that
never started, or started outside an attempt, leaves nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Self

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import capture_tags, current_attempt
from agentlightning.capture.identity import span_agent
from agentlightning.capture.spans.generators import close_stream
from agentlightning.types import Tags

CURRENT_TAGS: ContextVar[Tags] = ContextVar("agl_scene", default={})  # noqa: B039 - never mutated, only replaced
"""Tags of the scene whose code runs here."""


def identity() -> Tags:
    """Tags of the scene the code runs in, for ``IDENTITY``; ``{}`` outside one. Where another framework's
    agent speaks inside, its span names it."""
    tags, span_name = CURRENT_TAGS.get(), span_agent()
    if span_name in (None, tags.get("agent")):
        return dict(tags)
    return {key: value for key, value in tags.items() if key not in ("agent", "role")}


class AgentSpan:
    """``tags``: what is said of the calls inside; a tool's scene says what the agent around it does."""

    def __init__(self, operation: str, name: str, attributes: dict[str, Any], tags: Tags) -> None:
        self.operation, self.name, self.attributes, self.tags = operation, name, attributes, tags
        self.span: trace.Span | None = None

    @classmethod
    def for_agent(cls, name: str, **tags: str) -> Self:
        """An agent has its turn. ``tags``: what else its framework knows, e.g. ``node="plan"``."""
        around = {key: value for key, value in CURRENT_TAGS.get().items() if key != "role"}
        return cls("invoke_agent", name, {}, {**around, "agent": name, **tags})

    @classmethod
    def for_tool(cls, name: str, call_id: str | None, arguments: str) -> Self:
        """A tool runs; ``arguments`` as the model wrote them, where the framework keeps that."""
        attributes = {semconv.TOOL_NAME: name, semconv.TOOL_CALL_ARGUMENTS: arguments}
        if call_id is not None:
            attributes[semconv.TOOL_CALL_ID] = call_id
        return cls("execute_tool", name, attributes, CURRENT_TAGS.get())

    @contextmanager
    def run(self) -> Iterator[Self]:
        """The scene from its start to its end, around a call or an ``await``. Not around a ``yield``: that is
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

    def wrap_awaitable(self, work: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
        """``work``, awaited within the scene: for functions that return at once. What ``tagged`` and marks
        say here is said there too."""
        scope = capture_tags()

        async def awaited() -> Any:
            with scope(), self.run():
                return await work

        return awaited()

    def start(self) -> Self:
        """Begin the span, below the current one."""
        if current_attempt() is None:
            return self
        attributes = {semconv.TAG_PREFIX + key: value for key, value in self.tags.items()}
        if "agent" in self.tags:
            attributes[semconv.AGENT_NAME] = self.tags["agent"]
        self.span = trace.get_tracer("agentlightning").start_span(
            f"{self.operation} {self.name}",
            attributes={semconv.OPERATION_NAME: self.operation, **attributes, **self.attributes},
        )
        return self

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Code within the block belongs to the scene."""
        token = CURRENT_TAGS.set(self.tags)
        try:
            if self.span is None:
                yield
            else:
                with trace.use_span(self.span, record_exception=False, set_status_on_exception=False):
                    yield
        finally:
            with suppress(ValueError):  # closed by the collector, in a context where nothing was set
                CURRENT_TAGS.reset(token)

    async def wrap_stream(
        self, source: AsyncGenerator[Any, None], *, begin: bool = False
    ) -> AsyncGenerator[Any, None]:
        """The items of ``source``, whose code runs within the scene, to its end. ``begin``: start it too."""
        if begin:
            self.start()
        try:
            while True:
                try:
                    with self.activate():
                        item = await anext(source)
                except StopAsyncIteration:
                    return
                yield item
        except BaseException as error:
            self.set_error(error)
            raise
        finally:
            try:
                with self.activate():
                    await close_stream(source)
            finally:
                self.end()

    def wrap_generator(
        self, source: Generator[Any, None, Any], *, begin: bool = False
    ) -> Generator[Any, None, Any]:
        """As :meth:`wrap_stream` for a plain generator; what ``source`` returns is returned."""
        if begin:
            self.start()
        try:
            while True:
                try:
                    with self.activate():
                        item = next(source)
                except StopIteration as end:
                    return end.value
                yield item
        except BaseException as error:
            self.set_error(error)
            raise
        finally:
            try:
                with self.activate():
                    source.close()
            finally:
                self.end()

    @asynccontextmanager
    async def wrap_context_manager(
        self, manager: AbstractAsyncContextManager[Any]
    ) -> AsyncGenerator[Any, None]:
        """``manager``, whose entry and exit run within the scene; the block between them is the user's."""
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
        """The scene is over."""
        if self.span is not None:
            self.span.end()
