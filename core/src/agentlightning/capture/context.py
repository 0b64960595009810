"""The attempt, the tags and the agent of the running code.

OpenTelemetry's current context, an immutable mapping, holds them all: the attempt that the runner entered,
the :class:`AgentScope` of a decorated class, the tags of :func:`tagged` (as baggage, see
:data:`~agentlightning.semconv.BAGGAGE_PREFIX`), the caller that the agent's framework names
(:mod:`.identity`), and OpenTelemetry's own span. So they follow tasks, ``asyncio.gather`` and
``asyncio.to_thread``, and :mod:`.installation` hands them to threads.

Capture knows no store: finished spans go to ``sink``, a callable that the runner provides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, unquote

from opentelemetry import baggage, context as otel

from agentlightning.semconv import BAGGAGE_PREFIX
from agentlightning.types import LLM, Resource, Span, Tags, UsageError
from agentlightning.types.select import Predicate

Value = TypeVar("Value")
Sink = Callable[[Span], None]
"""Takes a finished span from any thread; must not block and must not raise."""


class ContextEntry(Generic[Value]):
    """One typed entry of OpenTelemetry's context."""

    def __init__(self, name: str) -> None:
        self._key = otel.create_key(name)

    def get(self, context: otel.Context | None = None) -> Value | None:
        """Return its value in ``context``, by default the current one; ``None`` if none was set."""
        return otel.get_value(self._key, context)  # type: ignore[return-value]

    def set(self, value: Value | None, context: otel.Context | None = None) -> otel.Context:
        """Return a copy of ``context``, by default the current one, with this value."""
        return otel.set_value(self._key, value, context)


def detach(token: Token[otel.Context]) -> bool:
    """Undo ``otel.attach``. In another task or thread than the one that attached, change nothing and return
    ``False``. Unlike ``otel.detach`` it logs nothing, because generators may be closed anywhere.
    """
    try:
        token.var.reset(token)
    except ValueError:
        return False
    return True


@contextmanager
def attached(context: otel.Context) -> Iterator[None]:
    """Make ``context`` OpenTelemetry's current one within the block."""
    token = otel.attach(context)
    try:
        yield
    finally:
        detach(token)


@dataclass(slots=True)
class AttemptContext:
    """The attempt that makes calls and emits rewards."""

    rollout_id: str
    attempt_id: str
    sink: Sink
    key: str | None = None
    """The attempt's key, sent to the gateway and nowhere else."""
    gateway: str | None = None
    """Base URL of the gateway, ``http://host:port/v1``."""
    tags: Tags = field(default_factory=dict)
    """Tags of every call of this attempt; an adapter's tags outrank them."""
    policies: dict[str, str] = field(default_factory=dict)
    """Name of an agent, role or node, or ``"re:…"`` → policy. The first match counts."""
    resources: dict[str, Resource] = field(default_factory=dict)
    task: Any = None
    root_agent: Any = None
    """The object of a decorated class that the runner runs and rewards."""
    entry_reward: list[float | None] | None = None
    """Of an attempt that is one call of an entry (``agl run --per-entry``): the value of its reward function,
    once it is known."""
    errors: list[Exception] = field(default_factory=list)
    """Errors of reward functions and selects. They fail the attempt even if the agent's framework swallows
    them."""
    surroundings: Any = None
    """What runs the attempt, for an agent that asks (hook ``agl_agents``); else ``None``."""
    keeps_content: bool = False
    """Whether spans of calls at the gateway hold what else the gateway alone keeps, messages and ids, and
    name the recorded call: for a sink that takes it out again."""

    @property
    def llm(self) -> LLM:
        """The first model endpoint among the resources. Raise UsageError if there is none."""
        for resource in self.resources.values():
            if isinstance(resource, LLM):
                return resource
        raise UsageError(
            f"attempt {self.attempt_id} was given no LLM resource; resources: {sorted(self.resources)}"
        )


@dataclass(slots=True, eq=False)
class AgentScope:
    """One call of a decorated class's entry method (:mod:`agentlightning.capture.identity`)."""

    agent: str
    owner: Any
    """The object, or the class of a static or class method."""
    selects: Predicate | None = None
    """Which calls inside are trained; ``None``: the scope around this one decides."""
    outer: AgentScope | None = None
    caller_agent: str | None = None
    """The agent that a framework named where the method was called."""
    outermost: bool = True
    """No entry method of the same object works around this one."""
    suspended: bool = False
    """The method has ended, or waits at a ``yield``. Tasks that it began may live on."""
    call_span_ids: list[str] = field(default_factory=list)
    """The spans of the model calls that the agent made itself."""


ATTEMPT: Final = ContextEntry[AttemptContext]("agl-attempt")
SCOPE: Final = ContextEntry[AgentScope]("agl-scope")
_process_attempt: list[AttemptContext] = []
"""The attempt that the whole process works for, if there is one (``agl run``)."""


def current_attempt() -> AttemptContext | None:
    """Return the attempt that this thread or task works for; ``None`` outside a rollout."""
    return ATTEMPT.get() or (_process_attempt[0] if _process_attempt else None)


def set_process_attempt(context: AttemptContext | None) -> None:
    """Set the attempt of all code in this process that enters none of its own; ``None`` unsets it."""
    _process_attempt[:] = [] if context is None else [context]


def current_task() -> Any:
    """Return the task of the current rollout; ``None`` outside one."""
    context = current_attempt()
    return context.task if context else None


@contextmanager
def attempt_context(context: AttemptContext) -> Iterator[AttemptContext]:
    """Make ``context`` the current attempt within the block."""
    with attached(ATTEMPT.set(context)):
        yield context


def baggage_tags(context: otel.Context | None = None) -> Tags:
    """Return the tags of :func:`tagged` alone."""
    found = baggage.get_all(context)
    start = len(BAGGAGE_PREFIX)
    ours = ((name, value) for name, value in found.items() if name.startswith(BAGGAGE_PREFIX))
    return {unquote(name[start:]): str(value) for name, value in ours}


def with_tags(tags: Tags) -> otel.Context:
    """Return a copy of the current context with these tags as baggage."""
    context = otel.get_current()
    for name, value in tags.items():
        context = baggage.set_baggage(BAGGAGE_PREFIX + quote(name, safe=""), value, context)
    return context


@contextmanager
def tagged(**tags: str) -> Iterator[None]:
    """Add tags to every call made within the block, e.g. ``with tagged(phase="night"): …``."""
    with attached(with_tags({name: str(value) for name, value in tags.items()})):
        yield


def capture_tags() -> Callable[[], AbstractContextManager[None]]:
    """Return a function that sets the present tags and scope again, around work that is done later."""
    tags, scope = baggage_tags(), SCOPE.get()

    def again() -> AbstractContextManager[None]:
        context = with_tags(tags)
        return attached(context if scope is None else SCOPE.set(scope, context))

    return again
