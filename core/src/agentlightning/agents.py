"""What a runner runs: agents as functions, as classes with a seed-style interface, or decorated classes.

``@agl.rollout`` turns a function ``(task, llm) -> float`` into an agent and leaves it callable.
``LitAgent`` is the
class form. ``@agl.agent`` marks an existing agent class of any framework *in place*: its entry methods tag
the calls made inside them with the agent's name; the class object, its signature and its subclasses stay what
they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from agentlightning.capture.context import tagged
from agentlightning.types import LLM, PromptTemplate, Resource, Rollout, Span, UsageError

Task = TypeVar("Task")
Result = float | int | bool | None | Sequence[Span]
"""A number is the final reward; ``None``: rewards were emitted, or are missing; spans are added to the
attempt.
"""


class AgentError(UsageError, TypeError):
    """Something that cannot be run as an agent, with what it would need."""


class LitAgent(Generic[Task]):
    """An agent as a class. Override ``rollout`` (sync) or ``rollout_async``; the training and validation
    forms default to it. ``resources`` maps names to what the algorithm gives the agent.
    """

    def rollout(self, task: Task, resources: dict[str, Resource], rollout: Rollout) -> Result:
        """Run one task; runs in a thread."""
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

    def on_rollout_start(self, task: Task, rollout: Rollout) -> None:
        """Called before an attempt."""

    def on_rollout_end(
        self, task: Task, rollout: Rollout, result: Result, error: BaseException | None
    ) -> None:
        """Called after an attempt, whatever became of it."""

    @property
    def is_async(self) -> bool:
        """Whether the coroutine form is the one to call."""
        own = type(self)
        names = ("rollout_async", "training_rollout_async", "validation_rollout_async")
        return any(getattr(own, name) is not getattr(LitAgent, name) for name in names)

    def entry(self, mode: str) -> Callable[[Task, dict[str, Resource], Rollout], Any]:
        """The method that runs a task in ``mode``."""
        name = "training_rollout" if mode == "train" else "validation_rollout"
        method: Callable[[Task, dict[str, Resource], Rollout], Any] = getattr(
            self, name + ("_async" if self.is_async else "")
        )
        return method


class FunctionAgent(LitAgent[Any]):
    """A function as an agent. The first parameter is the task; others are filled by name: ``llm`` and
    ``prompt_template`` with the first resource of that kind, ``resources``, ``rollout``, or a resource's
    own name.
    """

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or getattr(function, "__name__", "agent")
        self._parameters = _parameters(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def rollout(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Result:
        result: Result = self.function(task, **self._arguments(resources, rollout))
        return result

    async def rollout_async(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Result:
        result: Result = await self.function(task, **self._arguments(resources, rollout))
        return result

    def _arguments(self, resources: dict[str, Resource], rollout: Rollout) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, required in self._parameters.items():
            value = _resource(name, resources, rollout)
            if value is None and required:
                raise AgentError(
                    f"{self.name}() asks for {name!r}, but the rollout was given only {sorted(resources)}; "
                    "name the parameter after a resource, or use llm, prompt_template, resources or rollout"
                )
            if value is not None:
                given[name] = value
        return given


def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """Parameter name → required, of all but the first (the task)."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise AgentError(
            f"{getattr(function, '__name__', function)}() takes no task; its first parameter must be the task"
        )
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default is p.empty for p in parameters[1:] if p.kind in named}


def _resource(name: str, resources: dict[str, Resource], rollout: Rollout) -> Any:
    if name == "rollout":
        return rollout
    if name == "resources":
        return resources
    if name in resources:
        return resources[name]
    kind: type[Any] | None = {"llm": LLM, "prompt_template": PromptTemplate}.get(name)
    return next((r for r in resources.values() if kind and isinstance(r, kind)), None)


def rollout(function: Callable[..., Any]) -> FunctionAgent:
    """Make ``function`` an agent: ``@agl.rollout async def solve(task, llm) -> float``. It stays callable."""
    return FunctionAgent(function)


def as_agent(target: Any) -> LitAgent[Any]:
    """Anything a user may hand to the trainer, as an agent: LitAgent, function, class, or object with
    ``run``.
    """
    if isinstance(target, type):
        target = target()
    if isinstance(target, LitAgent):
        return target
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return FunctionAgent(target)
    run = getattr(target, "run", None)
    if callable(run):
        return FunctionAgent(run, name=type(target).__name__)
    raise AgentError(
        f"{target!r} is no agent: give a function (task, llm) -> reward, a LitAgent, or an object "
        "with run(task, …)"
    )


# ------------------------------------------------------------------------------------------ @agl.agent

_DEFAULT_ENTRY = ("run", "arun", "invoke", "ainvoke", "__call__")
C = TypeVar("C", bound=type)


@overload
def agent(cls: C, /) -> C: ...
@overload
def agent(*, name: str | None = None, methods: Sequence[str] | None = None) -> Callable[[C], C]: ...
def agent(cls: C | None = None, /, *, name: str | None = None, methods: Sequence[str] | None = None) -> Any:
    """Mark an existing agent class, in place: calls inside its entry methods carry the tag ``agent=name``.

    ``methods`` defaults to what the class's framework adapter says, else the first of ``run, arun, invoke,
    ainvoke,
    __call__`` that the class itself defines. Sync, async and async-generator methods keep their kind.
    """

    def mark(target: C) -> C:
        entries = list(methods) if methods else _entry_methods(target)
        if not entries:
            raise AgentError(
                f"{target.__name__} defines none of {', '.join(_DEFAULT_ENTRY)} and no adapter knows it; "
                "give methods=[…]"
            )
        for entry in entries:
            setattr(target, entry, _tagging(getattr(target, entry), name or target.__name__))
        return target

    return mark if cls is None else mark(cls)


def _entry_methods(cls: type) -> list[str]:
    from agentlightning import plugins

    for spec in plugins.load().adapters.values():
        found = list(spec.entry_methods(cls)) if spec.entry_methods else []
        if found:
            return found
    return [m for m in _DEFAULT_ENTRY if m in vars(cls)]


def _tagging(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            source = method(*args, **kwargs)
            try:
                while True:  # the tag is set only while the agent itself runs, never across a yield
                    with tagged(agent=name):
                        try:
                            item = await anext(source)
                        except StopAsyncIteration:
                            return
                    yield item
            finally:
                await source.aclose()

        return stream
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with tagged(agent=name):
                return await method(*args, **kwargs)

        return coroutine

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with tagged(agent=name):
            return method(*args, **kwargs)

    return call
