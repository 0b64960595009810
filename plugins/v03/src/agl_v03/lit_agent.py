"""``LitAgent``, an agent as a class, as Agent Lightning 0.1 to 0.3 have it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from agentlightning.capture.context import current_attempt
from agentlightning.decorator.agents import AgentError, RunnableAgent
from agentlightning.types import Resource, Rollout, Span
from agl_v03.triplet import Triplet

Task = TypeVar("Task")
Result = float | int | bool | None | Sequence[Span | Triplet]
"""A number is the final reward. ``None``: rewards were emitted, or are missing. Spans join the attempt's.
Triplets are trained in place of the captured calls (``docs/rollouts.md``).
"""


class _OfAttempt:
    """What runs the agent's current attempt, as an attribute; an agent may set one of its own."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, agent: Any, owner: type | None = None) -> Any:
        if agent is None:
            return self
        found = getattr(getattr(current_attempt(), "surroundings", None), self._name, None)
        if found is None:
            raise AttributeError(
                f"{type(agent).__name__}.{self._name}: there is none here; a rollout has its tracer, and its "
                "trainer and runner where they run in the same process"
            )
        return found


class LitAgent(RunnableAgent, Generic[Task]):
    """An agent as a class. Override ``rollout`` (sync) or ``rollout_async``; the training and validation
    methods call it. ``resources``: the algorithm's resources by name, such as an :class:`.LLM`.

    ``trained_agents``: a pattern; the run trains the agents in whose name it is found, unless the trainer is
    given ``select`` or ``adapter``. Within a rollout an agent has its ``tracer``, ``runner`` and ``trainer``.
    """

    trained_agents: str | None = None
    trainer = _OfAttempt()
    runner = _OfAttempt()
    tracer = _OfAttempt()

    def __init__(self, *, trained_agents: str | None = None) -> None:
        self.trained_agents = trained_agents

    def rollout(self, task: Task, resources: dict[str, Resource], rollout: Rollout) -> Result:
        """Run one task. The runner calls it in a thread."""
        raise AgentError(f"{type(self).__name__} defines neither rollout nor rollout_async")

    async def rollout_async(self, task: Task, resources: dict[str, Resource], rollout: Rollout) -> Result:
        """Run one task on the event loop."""
        raise AgentError(f"{type(self).__name__} defines neither rollout nor rollout_async")

    def training_rollout(self, task: Task, resources: dict[str, Resource], rollout: Rollout) -> Result:
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: Task, resources: dict[str, Resource], rollout: Rollout) -> Result:
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(
        self, task: Task, resources: dict[str, Resource], rollout: Rollout
    ) -> Result:
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(
        self, task: Task, resources: dict[str, Resource], rollout: Rollout
    ) -> Result:
        return await self.rollout_async(task, resources, rollout)

    def on_rollout_start(self, task: Task, rollout: Rollout) -> Any:
        """Called before an attempt. Like the other hooks it may be a coroutine function, and takes any of
        ``task, rollout, result, error, spans, agent, runner, tracer`` as named parameters, in any order.
        """

    def on_trace_start(self, task: Task, rollout: Rollout) -> Any:
        """Called when the attempt's span has begun."""

    def on_trace_end(self, task: Task, rollout: Rollout, spans: Sequence[Span]) -> Any:
        """Called when the agent has returned or raised. ``spans``: those that have ended in this process."""

    def on_rollout_end(
        self, task: Task, rollout: Rollout, result: Result, error: BaseException | None
    ) -> Any:
        """Called after an attempt, also after one that failed."""

    @property
    def is_async(self) -> bool:
        """Whether the tasks of at least one mode run on the event loop; else each runs in a thread."""
        return any(inspect.iscoroutinefunction(self.entry(mode)) for mode in ("train", "val"))

    def entry(self, mode: str) -> Callable[[Task, dict[str, Resource], Rollout], Any]:
        """Return the method that runs a task in ``mode``. Of the overridden methods, the mode's own comes
        before ``rollout`` and this before ``training_rollout``, a subclass's before a base class's, and the
        coroutine form before the other.
        """
        method = getattr(self, name := self._entry_name(mode))
        if not name.endswith("_async") or inspect.iscoroutinefunction(method):
            return method  # type: ignore[no-any-return]

        @functools.wraps(method)
        async def on_the_loop(*args: Any, **kwargs: Any) -> Any:  # a plain function that returns a coroutine
            return await method(*args, **kwargs)

        return on_the_loop

    def _entry_name(self, mode: str) -> str:
        of_mode = "training_rollout" if mode == "train" else "validation_rollout"
        for name in (of_mode, "rollout", "training_rollout"):
            form = min((name + "_async", name), key=lambda form: _override_depth(type(self), form))
            if _override_depth(type(self), form) < math.inf:
                return form
        return "rollout"


def _override_depth(cls: type, name: str) -> float:
    """Count the classes before the one that overrides LitAgent's method; infinite if none does."""
    own = cls.__mro__[: cls.__mro__.index(LitAgent)]
    return next((depth for depth, base in enumerate(own) if name in vars(base)), math.inf)
