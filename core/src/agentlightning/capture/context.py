"""Who is running here: the attempt that the current thread or task works for.

The runner enters an :class:`AttemptContext`; emitters, the wire layer and the span processor read it. It
travels in a ``contextvars.ContextVar``, so it follows tasks, ``asyncio.gather`` and ``asyncio.to_thread``.
So do the tags of :func:`tagged` and the :class:`AgentScope` of a decorated class; of both, the nearer names
the agent.

Capture knows no store: finished spans go to ``sink``, a callable that the runner provides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentlightning.types import LLM, Resource, Span, Tags
from agentlightning.types.select import Predicate

Value = TypeVar("Value")
Sink = Callable[[Span], None]
"""Takes a finished span from any thread; must not block and must not raise."""


@dataclass(slots=True)
class AttemptContext:
    """The attempt in whose name calls are made and rewards emitted."""

    rollout_id: str
    attempt_id: str
    sink: Sink
    key: str | None = None
    """The attempt's key, sent to the gateway and nowhere else."""
    gateway: str | None = None
    """Base URL of the gateway, ``http://host:port/v1``."""
    tags: Tags = field(default_factory=dict)
    """Tags every call of this attempt gets, below those of the adapter."""
    policies: dict[str, str] = field(default_factory=dict)
    """Name of an agent, role or node, or ``"re:…"`` → policy; the first that matches."""
    resources: dict[str, Resource] = field(default_factory=dict)
    task: Any = None
    root_agent: Any = None
    """The object of a marked class that the runner runs: the rollout's reward is made of what it returns."""
    entry_reward: list[float | None] | None = None
    """Where one call of an entry has the attempt to itself: what its class's reward function gave."""
    errors: list[Exception] = field(default_factory=list)
    """Errors in what our decorators were given. They fail the attempt, whatever the agent makes of them."""

    @property
    def llm(self) -> LLM:
        """The first model endpoint among the resources."""
        for resource in self.resources.values():
            if isinstance(resource, LLM):
                return resource
        raise LookupError(
            f"attempt {self.attempt_id} was given no LLM resource; resources: {sorted(self.resources)}"
        )


@dataclass(slots=True, eq=False)
class AgentScope:
    """A marked class's entry method at work (:mod:`agentlightning.capture.scope`)."""

    agent: str
    owner: Any
    """The object; the class for methods that have none."""
    selects: Predicate | None = None
    """Which calls made inside are trained; ``None``: as the scope around this one says."""
    outer: AgentScope | None = None
    caller_agent: str | None = None
    """The agent that a framework named where the method was called."""
    outermost: bool = True
    """No entry method of the same object is at work around this one."""
    suspended: bool = False
    """The method's code does not run: it has ended, or waits at a ``yield``. Tasks it began may live on."""
    call_span_ids: list[str] = field(default_factory=list)
    """Spans of the model calls that the agent made itself."""


_current: ContextVar[AttemptContext | None] = ContextVar("agl_attempt", default=None)
_tags: ContextVar[Tags] = ContextVar("agl_tags", default={})  # noqa: B039 - never mutated, only replaced
_scope: ContextVar[AgentScope | None] = ContextVar("agl_scope", default=None)
_process_attempt: list[AttemptContext] = []
"""The attempt that the whole process works for, where there is one (``agl run``)."""


def current_attempt() -> AttemptContext | None:
    """The attempt this thread or task works for, or ``None`` outside a rollout."""
    return _current.get() or (_process_attempt[0] if _process_attempt else None)


def set_process_attempt(context: AttemptContext | None) -> None:
    """Let all of this process work for ``context``, where no attempt of its own is entered; ``None``: for
    none.
    """
    _process_attempt[:] = [] if context is None else [context]


def current_task() -> Any:
    """The task of the current rollout (``None`` outside one)."""
    context = current_attempt()
    return context.task if context else None


@contextmanager
def attempt_context(context: AttemptContext) -> Iterator[AttemptContext]:
    """Work for ``context`` within the block."""
    with setting(_current, context):
        yield context


@contextmanager
def setting(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """``variable`` is ``value`` within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        with suppress(ValueError):  # code left hanging is closed by the collector, where nothing was set
            variable.reset(token)


def current_tags() -> Tags:
    """What :func:`tagged` and marks say around the current code."""
    tags, scope = _tags.get(), _scope.get()
    return tags if scope is None or "agent" in tags else {"agent": scope.agent, **tags}


def current_scope() -> AgentScope | None:
    """The innermost marked class at work around the current code."""
    return _scope.get()


@contextmanager
def tagged(**tags: str) -> Iterator[None]:
    """Add tags to every call made within the block, e.g. ``with tagged(phase="night"): …``."""
    with setting(_tags, {**_tags.get(), **{k: str(v) for k, v in tags.items()}}):
        yield


def capture_tags() -> Callable[[], AbstractContextManager[None]]:
    """What :func:`tagged` and marks say here, to be said again around work that is done later."""
    tags, scope = _tags.get(), _scope.get()

    @contextmanager
    def again() -> Iterator[None]:
        with setting(_tags, {**_tags.get(), **tags}), setting(_scope, scope or _scope.get()):
            yield

    return again
