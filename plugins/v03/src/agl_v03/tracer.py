"""Trace any agent without a store: its spans, kept in memory, and the tree they make.

``with tracer.trace("my-agent", task): …`` records the block; ``tracer.last_trace()`` returns the last record.
Outside an attempt the block is an attempt of its own that no store knows; inside one, spans go to the attempt
and to the record. Invariant: a record holds each span that ended before its block did, once.

The tracer classes are names of v0.3: capture needs no tracer, so they only switch it on or off.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import ReadableSpan
from rich.text import Text

from agentlightning import capture
from agentlightning.capture.context import AttemptContext, attempt_context, current_attempt
from agentlightning.capture.installation import capturing
from agentlightning.capture.records import convert
from agentlightning.plugins.manager import load
from agentlightning.plugins.suite import install_line
from agentlightning.runner.agent import instrumentors
from agentlightning.runner.threads import run_sync
from agentlightning.terminal import Console
from agentlightning.types import Span, UsageError, new_id
from agl_audit.attempt_tree import SpanNode, build_tree
from agl_audit.drawing import draw, print_whole, svg
from agl_v03.operation import operation
from agl_v03.sessions import capturing_for

Result = TypeVar("Result")
_LOG = logging.getLogger(__name__)


class Trace:
    """The record of one :func:`trace` block. ``output``: set it inside the block to record a result."""

    def __init__(self, name: str, input: Any) -> None:
        self.name, self.input = name, input
        self.output: Any = None
        self.spans: list[Span] = []
        """The spans in the order in which they ended; the block's own span is the last."""

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, {len(self.spans)} spans)"

    @property
    def tree(self) -> list[SpanNode]:
        """The spans under their parents, on each level in order of start."""
        return build_tree(self.spans)

    def visualize(
        self, filename: str | os.PathLike[str] = "tree_graph", path: str | os.PathLike[str] | None = None
    ) -> Path | None:
        """Draw the tree into ``<filename>.svg`` in the folder ``path`` (default: the current one), and print
        it as text. Return the file's path; ``None``, with a message, when the file cannot be written.
        """
        name = os.fspath(filename).removesuffix(".svg") + ".svg"
        place = Path(path or "") / name
        tree = self.tree
        print_whole(draw(Text(self.name, style="bold"), tree), Console())
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(svg(self.name, tree), encoding="utf-8")
        except OSError as error:
            print(f"not drawn: {error}")
            return None
        print(f"drawn: {place}")
        return place

    def _repr_svg_(self) -> str:
        return svg(self.name, self.tree)


_last: Trace | None = None


def last_trace() -> Trace:
    """Return the record of the last block of :func:`trace` that ended. Raise UsageError if there was none."""
    if _last is None:
        raise UsageError('nothing was traced yet: `with agl.tracer.trace("my-agent", task): …` first')
    return _last


@contextmanager
def trace(name: str = "agent", input: Any = None) -> Iterator[Trace]:
    """Record the block: model calls of the openai SDK, rewards and other emissions, and the OpenTelemetry
    spans of any framework, also in tasks and threads that begin inside.

    ``input``: the agent's task, shown at the root.
    """
    global _last
    record, outer = Trace(name, input), current_attempt()

    def keep(span: Span) -> None:
        if outer is None:
            span.sequence_id = len(record.spans) + 1
        record.spans.append(span)
        if outer is not None:
            outer.sink(span)

    installed: Any
    if outer is None:
        context = AttemptContext(rollout_id=new_id("ro"), attempt_id=new_id("at"), sink=keep, task=input)
        installed = capturing(instrumentors(load()))
    else:
        context = dataclasses.replace(outer, sink=keep)
        installed = nullcontext()
    inputs = {} if input is None else {"input": input}
    try:
        with installed, attempt_context(context), operation(name, **inputs) as root:
            try:
                yield record
            finally:
                root.output = record.output
    finally:
        if outer is None:
            capture.end_attempt(context.attempt_id)
        _last = record


class Tracer:
    """The base of all tracers, for ``Trainer(tracer=…)`` and ``LitAgentRunner(tracer=…)``. ``captures``:
    whether agents are captured in their process.

    Capture listens to the process's OpenTelemetry provider, whoever makes it, and to the openai SDK; it
    changes nothing in a user's own tracing. A subclass may override :meth:`init`, :meth:`init_worker` and
    their ends, which a run calls in each process that runs agents.
    """

    captures = True
    worker_id: int | None = None
    """The worker in which it was begun."""
    trace = staticmethod(trace)
    last_trace = staticmethod(last_trace)
    _last: tuple[str | None, list[Span]] | None = None
    _spans: list[Span] | None = None
    _store: Any = None

    # ------------------------------------------------------------------------------------------ lifetime
    def init(self, *args: Any, **kwargs: Any) -> None:
        """Called before capture is used in a process."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Called at the end."""

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        """Called after :meth:`init`. ``store``: for each :meth:`trace_context` that names none."""
        self.worker_id, self._store = worker_id, store

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do nothing, as in v0.3: the work is the agent's."""

    def teardown_worker(self, worker_id: int) -> None:
        """Called before :meth:`teardown`."""
        self._store = None

    @contextmanager
    def lifespan(self, store: Any = None) -> Iterator[Tracer]:
        """Capture within the block. ``store``: as for :meth:`init_worker`."""
        with capturing_for(self, instrumentors(load())):
            before, self._store = self._store, store
            try:
                yield self
            finally:
                self._store = before

    # ------------------------------------------------------------------------------------------- records
    def get_last_trace(self) -> list[Span]:
        """Return the spans of the last :meth:`trace_context` that ended here; else, in a rollout, those of
        its attempt so far, with the token ids of its calls; else those of the last :func:`trace`.
        """
        attempt = current_attempt()
        if self._last is not None and self._last[0] == (attempt.attempt_id if attempt else None):
            return list(self._last[1])
        if attempt is not None and attempt.surroundings is not None:
            return list(attempt.surroundings.spans)
        return list(self._spans if self._spans is not None else last_trace().spans)

    def of_spans(self, spans: list[Span]) -> Tracer:
        """Return this tracer with ``spans`` as its last trace."""
        made = copy(self)
        made._spans, made._last = spans, None
        return made

    def trace_context(
        self,
        name: str | None = None,
        *,
        store: Any = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> TraceContext:
        """Record a block, ``with`` or ``async with``, as work of an attempt, and store its spans when it
        ends. The block gets a tracer of OpenTelemetry. Without ids it is an attempt of its own, which no
        store knows.
        """
        if (rollout_id is None) != (attempt_id is None):
            raise UsageError("trace_context: give both rollout_id and attempt_id, or none")
        place = store if store is not None else self._store
        return TraceContext(self, name, place if rollout_id is not None else None, rollout_id, attempt_id)

    def trace_run(self, func: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call a function within :meth:`trace_context` and return its result."""
        with self.trace_context(func.__name__):
            return func(*args, **kwargs)

    async def trace_run_async(
        self, func: Callable[..., Awaitable[Result]], *args: Any, **kwargs: Any
    ) -> Result:
        """Await a coroutine function within :meth:`trace_context` and return its result."""
        async with self.trace_context(func.__name__):
            return await func(*args, **kwargs)

    @contextmanager
    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> Iterator[RecordedOperation]:
        """Record the block as a span of OpenTelemetry, around what happens inside. Times are seconds of the
        clock; by default those of the block.
        """
        opened = trace_api.get_tracer("agentlightning").start_span(
            name, attributes=dict(attributes or {}), start_time=_nanoseconds(start_time)
        )
        recorded = RecordedOperation(opened, name)
        try:
            with trace_api.use_span(opened, record_exception=False, set_status_on_exception=False):
                yield recorded
        except BaseException as error:
            recorded.record_exception(error)
            raise
        finally:
            opened.end(_nanoseconds(end_time))

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: float | None = None,
        status: Any = None,
    ) -> Span:
        """Record a span without length. ``status``: ``ok``, ``error``, or an object with ``status_code``."""
        with self.operation_context(name, attributes, timestamp, timestamp) as recorded:
            if status is not None:
                code, why = getattr(status, "status_code", status), getattr(status, "description", None)
                recorded.record_status(str(code), why)
        return recorded.get_recorded_span()

    def get_langchain_handler(self, tags: Sequence[str] | None = None) -> Any:
        """Return a callback handler for LangChain that does nothing: the adapter ``langchain`` hears all runs
        of the process, and needs no ``callbacks``. ``None``, with a warning, where it is not installed.
        """
        if find_spec("langchain_core") is None or "langchain" not in load().adapters:
            _LOG.warning("LangChain's agents are not named: %s", install_line("adapter", "langchain"))
            return None
        return import_module("langchain_core.callbacks").BaseCallbackHandler()

    get_langchain_callback_handler = get_langchain_handler

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class TraceContext:
    """A block that ``tracer`` records as work of an attempt (:meth:`Tracer.trace_context`)."""

    def __init__(
        self, tracer: Tracer, name: str | None, store: Any, rollout_id: str | None, attempt_id: str | None
    ) -> None:
        self._tracer, self._name, self._store = tracer, name, store
        self._found: list[Span] = []
        self._context = AttemptContext(
            rollout_id or new_id("ro"), attempt_id or new_id("at"), sink=self._found.append
        )
        self._outer = current_attempt()

    def __enter__(self) -> trace_api.Tracer:
        self._block = ExitStack()
        if self._tracer.captures:
            self._block.enter_context(capturing(instrumentors(load())))
        self._block.enter_context(attempt_context(self._context))
        return trace_api.get_tracer(self._name or "agentlightning")

    def __exit__(self, *raised: Any) -> None:
        self._leave()
        if self._store is not None and self._found:
            run_sync(self._write)

    async def __aenter__(self) -> trace_api.Tracer:
        return self.__enter__()

    async def __aexit__(self, *raised: Any) -> None:
        self._leave()
        if self._store is not None and self._found:
            await self._write()

    def _leave(self) -> None:
        self._block.close()
        capture.end_attempt(self._context.attempt_id)
        self._tracer._last = (self._outer.attempt_id if self._outer else None, self._found)

    async def _write(self) -> None:
        await self._store.add_many_spans(self._found)


class RecordedOperation:
    """What :meth:`Tracer.operation_context` records."""

    def __init__(self, span: trace_api.Span, name: str) -> None:
        self._span, self._name = span, name

    def record_exception(self, exception: BaseException) -> None:
        """Record an exception, and that the operation failed."""
        self._span.record_exception(exception)
        self.record_status("error", str(exception))

    def record_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes."""
        self._span.set_attributes(dict(attributes))

    def record_status(self, status_code: str, description: str | None = None) -> None:
        """Set the status: ``ok``, ``error`` or ``unset``."""
        self._span.set_status(trace_api.StatusCode[status_code.upper()], description)

    def get_otel_span(self) -> trace_api.Span:
        """Return OpenTelemetry's span."""
        return self._span

    def get_recorded_span(self) -> Span:
        """Return the span as it stands; empty where no provider records."""
        context = current_attempt() or AttemptContext("", "", sink=lambda span: None)
        if isinstance(self._span, ReadableSpan):
            return convert(self._span, context)
        return Span(rollout_id=context.rollout_id, attempt_id=context.attempt_id, name=self._name)


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e9)


class OtelTracer(Tracer):
    """OpenTelemetry's spans and the openai SDK's calls: the default."""


class AgentOpsTracer(OtelTracer):
    """The same beside AgentOps, whose spans are OpenTelemetry's: they are recorded once the user has started
    AgentOps. This class starts no client and changes none.
    """

    def __init__(
        self, *, agentops_managed: bool = False, instrument_managed: bool = True, daemon: bool = True
    ) -> None:
        """The arguments are those of v0.3. Nothing of AgentOps is managed; ``instrument_managed``: whether
        :meth:`init_worker` calls :meth:`instrument`.
        """
        self.agentops_managed, self.instrument_managed = agentops_managed, instrument_managed
        self.daemon = daemon
        if find_spec("agentops") is None:
            _LOG.info("AgentOps is not installed: AgentOpsTracer captures what OtelTracer does")

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        """As :meth:`Tracer.init_worker`, and :meth:`instrument`."""
        super().init_worker(worker_id, store)
        if self.instrument_managed:
            self.instrument(worker_id)

    def teardown_worker(self, worker_id: int) -> None:
        """As :meth:`Tracer.teardown_worker`, before it :meth:`uninstrument`."""
        if self.instrument_managed:
            self.uninstrument(worker_id)
        super().teardown_worker(worker_id)

    def instrument(self, worker_id: int) -> None:
        """For a subclass that instruments more. Here capture is on in each block that is traced."""

    def uninstrument(self, worker_id: int) -> None:
        """Undo :meth:`instrument`."""


class DummyTracer(Tracer):
    """Capture off in the agent's process. The gateway and the emitters still record."""

    captures = False

    @staticmethod
    @contextmanager
    def trace(name: str = "agent", input: Any = None) -> Iterator[Trace]:
        """Record nothing."""
        yield Trace(name, input)
