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
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opentelemetry import trace as trace_api
from rich.text import Text

from agentlightning import capture
from agentlightning.audit.attempt_tree import SpanNode, build_tree
from agentlightning.audit.drawing import draw, print_whole, svg
from agentlightning.capture.context import AttemptContext, attempt_context, current_attempt
from agentlightning.capture.instrument.sessions import capturing, capturing_for
from agentlightning.capture.spans.operation import operation
from agentlightning.plugins.manager import load
from agentlightning.runner.agent.adapters import instrumentors
from agentlightning.terminal import Console
from agentlightning.types import Span, UsageError, new_id

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
    changes nothing in a user's own tracing.
    """

    captures = True
    trace = staticmethod(trace)
    last_trace = staticmethod(last_trace)
    _spans: list[Span] | None = None
    _store: Any = None

    def get_last_trace(self) -> list[Span]:
        """Return the spans of the last :meth:`trace_context` or :func:`trace`; in a hook of a runner, those
        of the attempt so far.
        """
        return list(self._spans if self._spans is not None else last_trace().spans)

    def of_spans(self, spans: list[Span]) -> Tracer:
        """Return this tracer with ``spans`` as its last trace."""
        made = copy(self)
        made._spans = spans
        return made

    @contextmanager
    def lifespan(self, store: Any = None) -> Iterator[Tracer]:
        """Capture within the block. ``store``: for each :meth:`trace_context` that names none."""
        before, self._store = self._store, store
        try:
            with capturing_for(self, instrumentors(load())):
                yield self
        finally:
            self._store = before

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: Any = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[trace_api.Tracer]:
        """Record the block as work of an attempt, and store its spans when it ends. Yield a tracer of
        OpenTelemetry. Without ids the block is an attempt of its own, which no store knows.
        """
        if (rollout_id is None) != (attempt_id is None):
            raise UsageError("trace_context: give both rollout_id and attempt_id, or none")
        found: list[Span] = []
        context = AttemptContext(rollout_id or new_id("ro"), attempt_id or new_id("at"), sink=found.append)
        try:
            with capturing_for(self, instrumentors(load())), attempt_context(context):
                yield trace_api.get_tracer(name or "agentlightning")
        finally:
            capture.end_attempt(context.attempt_id)
            self._spans = found
            place = store if store is not None else self._store
            if place is not None and rollout_id is not None and found:
                await place.add_many_spans(found)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class OtelTracer(Tracer):
    """OpenTelemetry's spans and the openai SDK's calls: the default."""


class AgentOpsTracer(OtelTracer):
    """The same beside AgentOps, whose spans are OpenTelemetry's: they are recorded once the user has started
    AgentOps. This class starts no client and changes none.
    """

    def __init__(self) -> None:
        if find_spec("agentops") is None:
            _LOG.info("AgentOps is not installed: AgentOpsTracer captures what OtelTracer does")


class DummyTracer(Tracer):
    """Capture off in the agent's process. The gateway and the emitters still record."""

    captures = False

    @staticmethod
    @contextmanager
    def trace(name: str = "agent", input: Any = None) -> Iterator[Trace]:
        """Record nothing."""
        yield Trace(name, input)
