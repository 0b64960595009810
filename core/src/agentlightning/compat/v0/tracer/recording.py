"""A record of one run of any agent, kept in memory: its spans, and the tree they make.

Outside an attempt the block is an attempt of its own that no store knows; inside one, spans go to the attempt
and to the record alike. Invariant: a record holds each span that ended before its block did, once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from agentlightning import capture
from agentlightning.audit.attempt_tree import SpanNode, build_tree
from agentlightning.capture.context import AttemptContext, attempt_context, current_attempt
from agentlightning.capture.instrument.sessions import capturing
from agentlightning.capture.spans.operation import operation
from agentlightning.compat.v0.tracer.drawing import print_tree, svg
from agentlightning.plugins.manager import load
from agentlightning.runner.agent.adapters import instrumentors
from agentlightning.types import Span, UsageError, new_id


class Trace:
    """The record of one :func:`trace` block. ``output``: set it inside the block to record a result."""

    def __init__(self, name: str, input: Any) -> None:
        self.name, self.input = name, input
        self.output: Any = None
        self.spans: list[Span] = []
        """In the order in which they ended; the block's own span is the last."""

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, {len(self.spans)} spans)"

    @property
    def tree(self) -> list[SpanNode]:
        """The spans under their parents, each level in order of start."""
        return build_tree(self.spans)

    def visualize(
        self, filename: str | os.PathLike[str] = "tree_graph", path: str | os.PathLike[str] | None = None
    ) -> Path | None:
        """Draw the tree into ``<filename>.svg`` in the folder ``path`` (default: here), and print it as text.

        Returns the file's path; ``None``, with a message, where the file cannot be written.
        """
        name = os.fspath(filename).removesuffix(".svg") + ".svg"
        place = Path(path or "") / name
        tree = self.tree
        print_tree(self.name, tree)
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

    def _add(self, span: Span) -> None:
        self.spans.append(span)


_last: Trace | None = None


def last_trace() -> Trace:
    """The record of the last block of :func:`trace` that ended. UsageError: there was none."""
    if _last is None:
        raise UsageError('nothing was traced yet: `with agl.tracer.trace("my-agent", task): …` first')
    return _last


@contextmanager
def trace(name: str = "agent", input: Any = None) -> Iterator[Trace]:
    """Record the code inside, unchanged: model calls of the openai SDK, rewards and other
    emissions, and the OpenTelemetry spans of any framework.

    ``input``: what the agent works on, shown at the root. Works in tasks and threads begun inside, too.
    """
    global _last
    record, outer = Trace(name, input), current_attempt()
    if outer is None:
        context = AttemptContext(
            rollout_id=new_id("ro"), attempt_id=new_id("at"), sink=_numbering_sink(record), task=input
        )
        installed: Any = capturing(instrumentors(load()))
    else:
        context = dataclasses.replace(outer, sink=_forwarding_sink(record, outer))
        installed = nullcontext()
    try:
        with installed, attempt_context(context), operation(name, **_inputs(input)) as root:
            try:
                yield record
            finally:
                root.output = record.output
    finally:
        if outer is None:
            capture.end_attempt(context.attempt_id)
        _last = record


def _inputs(input: Any) -> dict[str, Any]:
    return {} if input is None else {"input": input}


def _numbering_sink(record: Trace) -> Any:
    def sink(span: Span) -> None:
        span.sequence_id = len(record.spans) + 1
        record._add(span)

    return sink


def _forwarding_sink(record: Trace, outer: AttemptContext) -> Any:
    def sink(span: Span) -> None:
        record._add(span)
        outer.sink(span)

    return sink
