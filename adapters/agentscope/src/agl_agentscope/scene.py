"""A stretch of an agent's work as an OpenTelemetry span: an agent replies, or a tool runs.

Invariant: a scene is current while its own code runs, also in a generator that is read elsewhere, and never
across what the reader does between two items. A scene that never started leaves nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.types import Tags
from agl_agentscope.identity import SPEAKER


class Scene:
    """``speaker``: the agent that replies; a tool's scene has none, and belongs to the agent around it."""

    def __init__(self, operation: str, name: str, attributes: Tags, speaker: str | None = None) -> None:
        self.operation, self.name, self.attributes = operation, name, attributes
        self.speaker = speaker or SPEAKER.get()
        self.span: trace.Span | None = None

    @classmethod
    def of_agent(cls, name: str) -> Scene:
        """An agent replies."""
        return cls("invoke_agent", name, {}, speaker=name)

    @classmethod
    def of_tool(cls, name: str, call_id: str, arguments: str) -> Scene:
        """A tool runs; ``arguments`` as the model wrote them, where the framework keeps that."""
        return cls(
            "execute_tool",
            name,
            {
                semconv.TOOL_NAME: name,
                semconv.TOOL_CALL_ID: call_id,
                semconv.TOOL_CALL_ARGUMENTS: arguments,
            },
        )

    def start(self) -> Scene:
        """Begin the span, below the current one."""
        agent = {semconv.AGENT_NAME: self.speaker} if self.speaker else {}
        self.span = trace.get_tracer("agl_agentscope").start_span(
            f"{self.operation} {self.name}",
            attributes={semconv.OPERATION_NAME: self.operation, **agent, **self.attributes},
        )
        return self

    @contextmanager
    def on(self) -> Iterator[None]:
        """Code within the block belongs to the scene."""
        token = SPEAKER.set(self.speaker)
        try:
            if self.span is None:
                yield
            else:
                with trace.use_span(self.span, record_exception=False, set_status_on_exception=False):
                    yield
        finally:
            SPEAKER.reset(token)

    async def through(
        self, source: AsyncGenerator[Any, None], *, begin: bool = False
    ) -> AsyncGenerator[Any, None]:
        """The items of ``source``, whose code runs within the scene, to its end. ``begin``: start it too."""
        if begin:
            self.start()
        try:
            while True:
                try:
                    with self.on():
                        item = await anext(source)
                except StopAsyncIteration:
                    return
                yield item
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            try:
                with self.on():
                    await source.aclose()
            finally:
                self.end()

    def result(self, text: str, failed: bool) -> None:
        """What a tool gave back."""
        if self.span is not None:
            self.span.set_attribute(semconv.TOOL_CALL_RESULT, text)
            if failed:
                self.span.set_status(trace.StatusCode.ERROR, text[:2000])

    def fail(self, error: BaseException) -> None:
        """The code raised. A reader who stops reading is no error."""
        if self.span is not None and not isinstance(error, GeneratorExit):
            self.span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"[:2000])

    def end(self) -> None:
        """The scene is over."""
        if self.span is not None:
            self.span.end()
