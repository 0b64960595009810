"""What LangChain is running: a record of each live run, found again from wherever a model is called.

LangChain gives every chain and tool a run id and hands its callback manager down in a context variable, so
the manager's ``parent_run_id`` says in which run the code works, in every task and thread of LangChain's.
Invariant: a run belongs to the attempt it began in; runs outside an attempt leave no record.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, current_attempt
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.delivery import deliver, trace_of
from agentlightning.capture.identity import Standing, span_agent
from agentlightning.types import Span, Tags, merge_tags

INTERRUPTED = "agl.interrupted"
"""The run was left for a human's answer or another graph, and did not fail."""
_LIVE_AT_MOST = 65_536
"""Runs that never end (streams that nobody closes) push out the oldest beyond this many; counted."""


@dataclass(slots=True, eq=False)
class Run:
    """A live run. ``title`` is the name of the span it leaves; without one it leaves none."""

    context: AttemptContext
    name: str
    metadata: Mapping[str, Any]
    parent: Run | None = None
    tags: Tags = field(default_factory=dict)
    trace_id: str = ""
    parent_id: str | None = None
    """The span above it."""
    outer: int = 0
    """OpenTelemetry's current span when it began; another one later is nearer than this run."""
    call_id: str | None = None
    """The tool call it executes."""
    agent: str | None = None
    """The agent whose turn this run is; ``None`` for what happens inside one."""
    title: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    span_id: str = field(default_factory=lambda: secrets.token_hex(8))
    start: float = field(default_factory=time.time)

    @property
    def anchor(self) -> str | None:
        """The span below which hangs what happens in it."""
        return self.span_id if self.title else self.parent_id

    def fresh(self, key: str) -> Any:
        """This metadata if it was set on the run itself; ``None`` where it came down from above."""
        value = self.metadata.get(key)
        return None if self.parent is not None and self.parent.metadata.get(key) == value else value

    def holds(self, span: trace.Span) -> bool:
        """Whether the run is at least as near as ``span``, OpenTelemetry's current one."""
        number = span.get_span_context().span_id
        return number == self.outer or f"{number:016x}" == self.anchor

    def name_agent(self, name: str) -> None:
        """The run is the turn of this agent."""
        self.agent = self.tags["agent"] = name
        self.title = self.title or f"invoke_agent {name}"
        self.attributes.setdefault(semconv.OPERATION_NAME, "invoke_agent")


READERS: list[Callable[[Run], None]] = []
"""Functions that read a run's metadata when it begins, into its tags and title; in order."""
ANSWERED: list[Callable[[Run, Any], None]] = []
"""Functions that are given each model's answer (an ``LLMResult``) and the run it was asked in."""
RUNS: dict[UUID, Run] = {}


def begin(facts: Mapping[str, Any], name: str) -> Run | None:
    """Keep a record of a run that begins here, of what its callback says; ``None`` outside an attempt."""
    context = current_attempt()
    if context is None:
        return None
    parent = RUNS.get(facts.get("parent_run_id"))  # type: ignore[arg-type]
    parent = parent if parent is not None and parent.context is context else None
    metadata, tags = facts.get("metadata") or {}, dict(parent.tags) if parent else {}
    run = Run(context, name, metadata, parent, tags, call_id=facts.get("tool_call_id"))
    live = trace.get_current_span()
    above = live.get_span_context()
    if parent is not None and parent.holds(live):
        run.outer, run.trace_id, run.parent_id = parent.outer, parent.trace_id, parent.anchor
    elif above.is_valid:
        run.outer, run.trace_id = above.span_id, f"{above.trace_id:032x}"
        run.parent_id = f"{above.span_id:016x}"
        run.tags |= merge_tags({"agent": span_agent(live)})
    else:
        run.trace_id = trace_of(context.attempt_id)
    for read in tuple(READERS):
        read(run)
    if len(RUNS) >= _LIVE_AT_MOST and RUNS.pop(next(iter(RUNS)), None):
        COUNTS.add("langchain-run-forgotten")
    RUNS[facts["run_id"]] = run
    return run


def finish(run: Run, error: BaseException | None = None, failed: str | None = None) -> None:
    """Deliver the run's span, if it leaves one. ``failed``: what went wrong where nothing was raised."""
    if run.title is None:
        return
    left = any(kind.__name__ == "GraphBubbleUp" for kind in type(error).__mro__)
    if error is not None and not left:
        failed = f"{type(error).__name__}: {error}"
        run.attributes[semconv.EXCEPTION_TYPE] = type(error).__name__
    if left:
        run.attributes[INTERRUPTED] = True
    if "agent" in run.tags:
        run.attributes[semconv.AGENT_NAME] = run.tags["agent"]
    tags = {semconv.TAG_PREFIX + key: value for key, value in run.tags.items()}
    rollout_id, attempt_id = run.context.rollout_id, run.context.attempt_id
    ids = {semconv.ROLLOUT_ID: rollout_id, semconv.ATTEMPT_ID: attempt_id}
    span = Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=run.title,
        trace_id=run.trace_id,
        span_id=run.span_id,
        parent_id=run.parent_id,
        status="error" if failed else "unset" if left else "ok",
        status_message=failed[:2000] if failed else None,
        attributes={**run.attributes, **tags, **ids},
        start_time=run.start,
        end_time=time.time(),
    )
    deliver(run.context, span)


def current_run() -> Run | None:
    """The run the code works in."""
    from langchain_core.runnables.config import var_child_runnable_config

    manager = (var_child_runnable_config.get() or {}).get("callbacks")
    run = RUNS.get(getattr(manager, "parent_run_id", None))  # type: ignore[arg-type]
    return run if run is not None and run.context is current_attempt() else None


def here() -> trace.Span | None:
    """The run's span, unless one of OpenTelemetry's own was opened inside it."""
    run = current_run()
    if run is None or run.anchor is None or not run.holds(trace.get_current_span()):
        return None
    return Standing(int(run.trace_id, 16), int(run.anchor, 16), run.tags.get("agent"))


def identity() -> Tags:
    """Tags of the run; without its agent where another framework's agent speaks inside it."""
    run, live = current_run(), trace.get_current_span()
    if run is None:
        return {}
    foreign = span_agent(live) is not None and not run.holds(live)
    return {key: value for key, value in run.tags.items() if not (foreign and key in ("agent", "role"))}
