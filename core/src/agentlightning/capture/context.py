"""Who is running here: the attempt that the current thread or task works for.

The runner enters an :class:`AttemptContext`; emitters, the wire layer and the span processor read it. It
travels in a ``contextvars.ContextVar``, so it follows tasks, ``asyncio.gather`` and ``asyncio.to_thread``.

Capture knows no store: finished spans go to ``sink``, a callable that the runner provides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentlightning.types import LLM, Resource, Span, Tags

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
    """Agent name → policy."""
    resources: dict[str, Resource] = field(default_factory=dict)
    task: Any = None

    @property
    def llm(self) -> LLM:
        """The first model endpoint among the resources."""
        for resource in self.resources.values():
            if isinstance(resource, LLM):
                return resource
        raise LookupError(
            f"attempt {self.attempt_id} was given no LLM resource; resources: {sorted(self.resources)}"
        )


_current: ContextVar[AttemptContext | None] = ContextVar("agl_attempt", default=None)
_tags: ContextVar[Tags] = ContextVar("agl_tags", default={})  # noqa: B039 - never mutated, only replaced


def current_attempt() -> AttemptContext | None:
    """The attempt this thread or task works for, or ``None`` outside a rollout."""
    return _current.get()


def current_task() -> Any:
    """The task of the current rollout (``None`` outside one)."""
    context = _current.get()
    return context.task if context else None


@contextmanager
def attempt_context(context: AttemptContext) -> Iterator[AttemptContext]:
    """Work for ``context`` within the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        with suppress(ValueError):  # an agent left hanging is closed by the collector, where nothing was set
            _current.reset(token)


def current_tags() -> Tags:
    """Tags set by :func:`tagged` around the current code."""
    return _tags.get()


@contextmanager
def tagged(**tags: str) -> Iterator[None]:
    """Add tags to every call made within the block, e.g. ``with tagged(phase="night"): …``."""
    token = _tags.set({**_tags.get(), **{k: str(v) for k, v in tags.items()}})
    try:
        yield
    finally:
        _tags.reset(token)
