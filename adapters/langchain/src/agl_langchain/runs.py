"""Keep one record of each of LangChain's live runs, and find it wherever a model is called.

LangChain gives every chain and tool a run id and hands its callback manager down in a context variable. So
the manager's ``parent_run_id`` names the run of the code, in every task and thread of LangChain's.
Invariant: a run belongs to the attempt it began in; runs outside an attempt leave no record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from agentlightning import semconv
from agentlightning.capture.context import current_attempt
from agentlightning.capture.identity import Caller
from agentlightning.capture.spans import EventSpan


class CutShort(Exception):
    """A run was still live when the one around it ended."""


@dataclass(slots=True, eq=False, kw_only=True)
class Run(EventSpan):
    """A live run."""

    name: str
    metadata: Mapping[str, Any]
    call_id: str | None = None
    """The id of the tool call that the run executes."""
    agent: str | None = None
    """The agent whose turn this run is; ``None`` for a run inside a turn."""
    live: bool = True
    parts: set[UUID] = field(default_factory=set)
    """The live runs inside this one."""

    def fresh(self, key: str) -> Any:
        """Return the metadata value if it was set on the run itself; ``None`` if it was inherited."""
        value = self.metadata.get(key)
        return None if self.parent is not None and self.parent.metadata.get(key) == value else value

    def name_agent(self, name: str) -> None:
        """Make the run the turn of this agent."""
        self.agent = self.tags["agent"] = name
        self.title = self.title or f"invoke_agent {name}"
        self.attributes.setdefault(semconv.OPERATION_NAME, "invoke_agent")


RUN_READERS: list[Callable[[Run], None]] = []
"""Functions that set a run's tags and title from its metadata when it begins, in this order."""
ANSWER_LISTENERS: list[Callable[[Run, Any], None]] = []
"""Functions that get each model's answer (an ``LLMResult``) and its run."""
RUNS: dict[UUID, Run] = {}
"""Live runs of chains, nodes and tools."""
MODELS: WeakValueDictionary[UUID, Run] = WeakValueDictionary()
"""Live runs of models, held by the context that asked: LangChain does not end those that are cancelled."""
CURRENT_MODEL_RUN: ContextVar[Run | None] = ContextVar("agl_langchain_asking", default=None)
"""The model run that began last in this context. ``batch`` asks models outside any chain's context."""


def record(event: Mapping[str, Any], name: str) -> Run | None:
    """Make the record of a run that begins from its callback's arguments; ``None`` outside an attempt."""
    context, parent = current_attempt(), RUNS.get(event.get("parent_run_id"))  # type: ignore[arg-type]
    if context is None:
        return None
    if parent is not None and parent.context is not context:
        parent = None
    metadata = event.get("metadata") or {}
    call_id = event.get("tool_call_id")
    run = Run(context=context, parent=parent, name=name, metadata=metadata, call_id=call_id)
    for read in tuple(RUN_READERS):
        read(run)
    return run


def begin(event: Mapping[str, Any], name: str) -> Run | None:
    """Record the run of a chain, node or tool."""
    if run := record(event, name):
        RUNS[event["run_id"]] = run
        if run.parent is not None:
            run.parent.parts.add(event["run_id"])
    return run


def end(run_id: UUID, end_span: Callable[[Run, Any], None], result: Any) -> None:
    """End the run and the live runs inside it: LangChain does not end a cancelled tool."""
    if (run := RUNS.pop(run_id, None)) is None:
        return
    for part in tuple(run.parts):
        end(part, finish, result if isinstance(result, BaseException) else CutShort(run.name))
    if run.parent is not None:
        run.parent.parts.discard(run_id)
    end_span(run, result)


def finish(run: Run, error: BaseException | None) -> None:
    """Deliver the run's span. An interruption is no failure."""
    if any(kind.__name__ == "GraphBubbleUp" for kind in type(error).__mro__):
        run.attributes[semconv.INTERRUPTED], error = True, None
        if run.attributes.get(semconv.OPERATION_NAME) == "execute_tool":
            run.attributes[semconv.OPERATION_NAME] = semconv.AWAIT_APPROVAL
    run.end(error)


def current_run() -> Run | None:
    """Return the run of the running code: a model's, else that of the chain, node or tool around it."""
    from langchain_core.runnables.config import var_child_runnable_config

    manager = (var_child_runnable_config.get() or {}).get("callbacks")
    run, model_run = RUNS.get(getattr(manager, "parent_run_id", None)), CURRENT_MODEL_RUN.get()  # type: ignore[arg-type]
    if model_run is not None and model_run.live and (run is None or model_run.is_within(run)):
        run = model_run
    return run if run is not None and run.context is current_attempt() else None


def current_caller() -> Caller | None:
    """Return the caller of the running code: its run."""
    run = current_run()
    return None if run is None else run.caller()
