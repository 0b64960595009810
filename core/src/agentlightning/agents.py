"""What a runner runs: agents as functions, as classes with a seed-style interface, or decorated classes.

``@agl.rollout`` turns a function ``(task, llm) -> float`` into an agent and leaves it callable.
``LitAgent`` is the class form. ``@agl.agent`` marks an existing agent class of any framework *in place*: its
entry methods tag the calls made inside them with the agent's name; the class object, its signature and its
subclasses stay what they are.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, overload

from agentlightning.capture.context import tagged
from agentlightning.types import LLM, PromptTemplate, Resource, Rollout, Span, Triplet, UsageError

Task = TypeVar("Task")
Result = float | int | bool | None | Sequence[Span | Triplet]
"""A number is the final reward; ``None``: rewards were emitted, or are missing; spans are added to the
attempt; triplets are what is trained of it (``docs/rollouts.md``).
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

    def on_rollout_start(self, task: Task, rollout: Rollout) -> Any:
        """Called before an attempt. Like the other hooks it may be a coroutine function, and take what it
        names of ``task, rollout, result, error, spans, agent, runner, tracer``, in any order.
        """

    def on_trace_start(self, task: Task, rollout: Rollout) -> Any:
        """Called when the attempt's span has begun."""

    def on_trace_end(self, task: Task, rollout: Rollout, spans: Sequence[Span]) -> Any:
        """Called when the agent has returned or raised; ``spans``: those that ended here so far."""

    def on_rollout_end(
        self, task: Task, rollout: Rollout, result: Result, error: BaseException | None
    ) -> Any:
        """Called after an attempt, whatever became of it."""

    @property
    def is_async(self) -> bool:
        """Whether a task of some mode runs on the event loop; ask :meth:`is_async_in` about one mode."""
        return self.is_async_in("train") or self.is_async_in("val")

    def is_async_in(self, mode: str) -> bool:
        """Whether :meth:`entry` of ``mode`` is awaited on the event loop; else it runs in a thread."""
        return self._entry_name(mode).endswith("_async") or inspect.iscoroutinefunction(self.entry(mode))

    def entry(self, mode: str) -> Callable[[Task, dict[str, Resource], Rollout], Any]:
        """The method that runs a task in ``mode``: of those the class overrides, the mode's own before
        ``rollout``, the nearest class's before an ancestor's, and the coroutine form before the other.
        """
        method: Callable[[Task, dict[str, Resource], Rollout], Any] = getattr(self, self._entry_name(mode))
        return method

    def _entry_name(self, mode: str) -> str:
        for name in ("training_rollout" if mode == "train" else "validation_rollout", "rollout"):
            form = min((name + "_async", name), key=lambda form: _depth(type(self), form))
            if _depth(type(self), form) < math.inf:
                return form
        return "rollout"


def _depth(cls: type, name: str) -> float:
    """How many classes lie before the one that overrides LitAgent's method; infinite if none does."""
    own = cls.__mro__[: cls.__mro__.index(LitAgent)]
    return next((depth for depth, base in enumerate(own) if name in vars(base)), math.inf)


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

    def __reduce__(self) -> str | tuple[Any, ...]:
        """As pickle: by name where a decorator put it in its function's place, else function and name."""
        place: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in getattr(self, "__qualname__", "").split("."):
            place = getattr(place, part, None)
        return self.__qualname__ if place is self else (_named_agent, (self.function, self.name))

    def _entry_name(self, mode: str) -> str:
        return "rollout_async" if inspect.iscoroutinefunction(self.function) else "rollout"

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


def _named_agent(function: Callable[..., Any], name: str) -> FunctionAgent:
    return FunctionAgent(function, name=name)


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
        target = _instance(target)
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


def _instance(cls: type) -> Any:
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise AgentError(
            f"{cls.__name__} cannot be made without arguments ({error}); give an object of it, e.g. "
            f"agent = {cls.__name__}(…)"
        ) from None
    except ValueError:  # a class written in C may have no signature to look at
        pass
    return cls()


# ------------------------------------------------------------------------------------------ @agl.agent

_DEFAULT_ENTRY = ("run", "arun", "invoke", "ainvoke", "__call__")
_MARKS = "__agl_marks__"
"""Attribute of a marked class: its own entry methods → name."""
C = TypeVar("C", bound=type)
Tagging = Callable[[tuple[Any, ...]], AbstractContextManager[None]]
"""Tags what runs within, given the positional arguments of the call."""


@overload
def agent(cls: C, /) -> C: ...
@overload
def agent(*, name: str | None = None, methods: Sequence[str] | None = None) -> Callable[[C], C]: ...
def agent(cls: C | None = None, /, *, name: str | None = None, methods: Sequence[str] | None = None) -> Any:
    """Mark an existing agent class, in place: calls inside its entry methods carry the tag ``agent=name``.

    ``methods`` defaults to what the class's framework adapter says, else those of ``run, arun, invoke,
    ainvoke, __call__`` that the class defines, else those it inherits. Sync, async, generator, static and
    class methods keep their kind. An object has one name: that of the nearest marked class, also in entry
    methods it inherits or reaches through ``super()``.
    """

    def mark(target: C) -> C:
        entries = list(methods) if methods else _entry_methods(target)
        if not entries:
            raise AgentError(
                f"{target.__name__} has none of {', '.join(_DEFAULT_ENTRY)} and no adapter knows it; "
                "give methods=[…]"
            )
        called = name or target.__name__
        for entry in entries:
            setattr(target, entry, _marked(target, entry, called))
        setattr(target, _MARKS, {**vars(target).get(_MARKS, {}), **dict.fromkeys(entries, called)})
        return target

    return mark if cls is None else mark(cls)


def _entry_methods(cls: type) -> list[str]:
    from agentlightning import plugins

    for spec in plugins.load().adapters.values():
        found = list(spec.entry_methods(cls)) if spec.entry_methods else []
        if found:
            return found
    own = [m for m in _DEFAULT_ENTRY if m in vars(cls)]
    return own or [m for m in _DEFAULT_ENTRY if any(m in vars(base) for base in cls.__mro__)]


def _marked(cls: type, entry: str, name: str) -> Any:
    """The method that replaces ``entry``: of the same kind, tagging what runs in it."""
    try:
        found = inspect.getattr_static(cls, entry)
    except AttributeError:
        raise AgentError(f"{cls.__name__} has no method {entry!r}") from None

    def named(args: tuple[Any, ...]) -> AbstractContextManager[None]:
        return tagged(agent=_name(args[0], entry, name) if args else name)

    if isinstance(found, staticmethod):  # it is given no object, so the name is the mark's own
        return staticmethod(_tagging(_unmarked(found.__func__), lambda args: tagged(agent=name)))
    if isinstance(found, classmethod):
        return classmethod(_tagging(found.__func__, named))
    if not callable(found):
        raise AgentError(f"{cls.__name__}.{entry} is of type {type(found).__name__}, not a method")
    return _tagging(found, named, None if entry in vars(cls) else _inherited(cls, entry, found))


def _inherited(cls: type, entry: str, found: Callable[..., Any]) -> Callable[..., Any]:
    """The method as the bases of ``cls`` have it when it is called: an adapter may wrap it there later."""

    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(owner, cls):  # the class was made anew, as ``dataclass(slots=True)`` does
            return found(owner, *args, **kwargs)
        return getattr(super(cls, owner), entry)(*args, **kwargs)

    return call


def _unmarked(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is under our wrapper, if ``function`` is one; wrappers of others copy the attribute and stay."""
    wrapper, method = getattr(function, "__agl_unmarked__", (None, function))
    return method if wrapper is function else function


def _name(owner: Any, entry: str, default: str) -> str:
    """The name of an object, or of a class, when it runs ``entry``: what its nearest marked class says."""
    for base in (owner if isinstance(owner, type) else type(owner)).__mro__:
        marks: dict[str, str] | None = vars(base).get(_MARKS)
        if marks:
            return marks.get(entry) or next(iter(marks.values()))
    return default


def _tagging(
    method: Callable[..., Any], tag: Tagging, inner: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A wrapper of ``method``'s kind that tags what runs in it, and calls ``inner`` (default: ``method``)."""
    wrapper: Any
    run = inner or method
    if inspect.isasyncgenfunction(method):
        wrapper = _async_generator(run, tag)
    elif inspect.isgeneratorfunction(method):
        wrapper = _generator(run, tag)
    elif inspect.iscoroutinefunction(method):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with tag(args):
                return await run(*args, **kwargs)

        wrapper = coroutine
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            with tag(args):
                result = run(*args, **kwargs)
            return _later(result, tag, args) if inspect.iscoroutine(result) else result

        wrapper = call
    functools.update_wrapper(wrapper, method)
    wrapper.__agl_unmarked__ = (wrapper, method)
    made: Callable[..., Any] = wrapper
    return made


async def _later(result: Coroutine[Any, Any, Any], tag: Tagging, args: tuple[Any, ...]) -> Any:
    """What a plain method left to be awaited, tagged like the method."""
    with tag(args):
        return await result


def _async_generator(
    method: Callable[..., AsyncGenerator[Any, Any]], tag: Tagging
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """``method`` tagged while its own code runs, never across a yield."""

    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        source = method(*args, **kwargs)
        advance = source.__anext__()
        try:
            while True:
                with tag(args):
                    try:
                        item = await advance
                    except StopAsyncIteration:
                        return
                try:
                    advance = source.asend((yield item))
                except Exception as error:  # thrown in by the caller
                    advance = source.athrow(error)
        finally:
            with tag(args):
                await source.aclose()

    return stream


def _generator(
    method: Callable[..., Generator[Any, Any, Any]], tag: Tagging
) -> Callable[..., Generator[Any, Any, Any]]:
    """``method`` tagged while its own code runs, never across a yield."""

    def stream(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        source = method(*args, **kwargs)
        advance = functools.partial(next, source)
        try:
            while True:
                with tag(args):
                    try:
                        item = advance()
                    except StopIteration as end:
                        return end.value
                try:
                    advance = functools.partial(source.send, (yield item))
                except Exception as error:  # thrown in by the caller
                    advance = functools.partial(source.throw, error)
        finally:
            with tag(args):
                source.close()

    return stream
