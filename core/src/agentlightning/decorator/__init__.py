"""``@agl.agent``: decorate an existing agent class of any framework, in place.

Inside the entry methods, model calls get the agent's name, and ``select`` decides which are trained; the
results of the methods are rewarded. Invariant: the class object, its signature, its subclasses, its pickles
and what its methods return stay the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from agentlightning.capture.call_hooks import hooked, undecorated, wrap_entry
from agentlightning.decorator.entry_call import (
    AGENT_SPECS,
    AgentSpec,
    EntryCall,
    agent_spec,
    entry_methods_of,
)
from agentlightning.decorator.overrides import mark_subclasses
from agentlightning.decorator.reward_function import AgentError, RewardFunction
from agentlightning.types.select import Select, selector

DEFAULT_ENTRY = ("run", "arun", "invoke", "ainvoke", "__call__")
C = TypeVar("C", bound=type)


@overload
def agent(cls: C, /) -> C: ...
@overload
def agent(
    *,
    name: str | None = None,
    select: Select = None,
    reward: Callable[..., Any] | None = None,
    methods: Sequence[str] | None = None,
) -> Callable[[C], C]: ...
def agent(
    cls: C | None = None,
    /,
    *,
    name: str | None = None,
    select: Select = None,
    reward: Callable[..., Any] | None = None,
    methods: Sequence[str] | None = None,
) -> Any:
    """Decorate an existing agent class, in place: calls inside its entry methods get the tag ``agent=name``.

    ``name`` defaults to the name of the class. An agent that a framework names inside keeps its own name.

    ``select``: the calls inside that are trained, by names, ``"re:…"``, a predicate of the call's tags,
    ``True`` or ``False``. ``None``: the decorated agent around this one selects. The run's own ``select``
    applies as well.

    ``reward``: a function, plain or coroutine, that is called with the result of an entry method. It takes
    the parameters ``task``, ``result`` and ``agent`` by name, in any choice, or the result as its only
    parameter, and returns a number, or ``None`` for no reward. For the agent that a runner runs, the number
    is the rollout's final reward; for an agent inside another, it rewards the calls that this agent made
    itself.

    ``methods``: the entry methods. Default: those that the adapter of the class's framework knows, else those
    of ``run, arun, invoke, ainvoke, __call__`` that the class defines, else those that it inherits. Sync,
    async, generator, static and class methods keep their kind.

    An object has one name, that of its nearest decorated class, also in entry methods that it inherits or
    reaches through ``super()``; ``select`` and ``reward`` are those of the nearest class that has them. A
    subclass that overrides an entry method is marked as its base is. Raise :class:`AgentError` or
    ``BadSelect`` for wrong arguments.
    """
    _check(name, methods)

    def decorate(target: C) -> C:
        if not isinstance(target, type):
            raise AgentError(
                f"@agl.agent decorates classes, not {target!r}: for a function, use @agl.rollout"
            )
        entries = list(methods) if methods is not None else _entry_methods(target)
        if not entries:
            raise AgentError(
                f"{target.__name__} has none of {', '.join(DEFAULT_ENTRY)} and no adapter knows it; "
                "give methods=[…]"
            )
        agent_name = name or target.__name__
        selects = None if select is None else selector(select, f"@agl.agent on {target.__name__}: select")
        spec = AgentSpec(agent_name, selects, None if reward is None else RewardFunction(reward, agent_name))
        wrappers = {entry: _wrap_entry(target, entry, spec) for entry in entries}
        for entry, method in wrappers.items():
            setattr(target, entry, method)
        setattr(target, AGENT_SPECS, {**vars(target).get(AGENT_SPECS, {}), **dict.fromkeys(entries, spec)})
        mark_subclasses(target, _mark_overrides)
        return target

    return decorate if cls is None else decorate(cls)


def _check(name: Any, methods: Any) -> None:
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise AgentError(f"@agl.agent: name is {name!r}; give the agent's name, or leave it out")
    if methods is None:
        return
    listed = isinstance(methods, Sequence) and not isinstance(methods, str)
    if not listed or not all(isinstance(method, str) for method in methods):
        raise AgentError(f"@agl.agent: methods is {methods!r}; give a list of names of methods")


def _entry_methods(cls: type) -> list[str]:
    from agentlightning.plugins import manager

    for spec in manager.load().adapters.values():
        found = list(spec.entry_methods(cls)) if spec.entry_methods else []
        if found:
            return found
    own = [m for m in DEFAULT_ENTRY if m in vars(cls)]
    return own or [m for m in DEFAULT_ENTRY if any(m in vars(base) for base in cls.__mro__)]


def _mark_overrides(subclass: type) -> None:
    """Wrap the entry methods that a subclass of decorated classes defines itself."""
    for entry in entry_methods_of(subclass):
        spec = agent_spec(subclass, entry)
        found = vars(subclass).get(entry)
        method = getattr(found, "__func__", found)
        if spec is not None and callable(method) and undecorated(method) is method:
            setattr(subclass, entry, _wrap_entry(subclass, entry, spec))


def _wrap_entry(cls: type, entry: str, spec: AgentSpec) -> Any:
    """Return the method that replaces ``entry``: of the same kind, with the agent's scope around its code."""
    try:
        found = inspect.getattr_static(cls, entry)
    except AttributeError:
        raise AgentError(f"{cls.__name__} has no method {entry!r}") from None

    def begin_call(args: tuple[Any, ...]) -> EntryCall:
        owner = args[0] if args else cls
        return EntryCall(owner, agent_spec(owner, entry) or spec, entry)

    if isinstance(found, staticmethod):  # it gets no object, so the spec is that of this class
        return staticmethod(_wrap(undecorated(found.__func__), lambda args: EntryCall(cls, spec, entry)))
    if isinstance(found, classmethod):
        return classmethod(_wrap(undecorated(found.__func__), begin_call))
    if not callable(found):
        raise AgentError(f"{cls.__name__}.{entry} is of type {type(found).__name__}, not a method")
    if entry in vars(cls):
        return _wrap(undecorated(found), begin_call)
    return _wrap(found, begin_call, _call_inherited(cls, entry, found))


def _wrap(
    method: Callable[..., Any],
    begin_call: Callable[[tuple[Any, ...]], EntryCall],
    inner: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Put the agent's scope around the code of ``method``. ``inner``: what to call in place of ``method``."""
    wrapper: Any = hooked(method, lambda args, kwargs: begin_call(args), inner)
    wrapper.__agl_undecorated__ = (wrapper, method)
    made: Any = wrap_entry(wrapper)
    made.__agl_undecorated__ = (made, method)
    return made  # type: ignore[no-any-return]


def _call_inherited(cls: type, entry: str, found: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that looks the method up in the bases of ``cls`` at each call: an adapter may wrap it
    there later."""

    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(owner, cls):  # something replaced the class, as ``dataclass(slots=True)`` does
            return found(owner, *args, **kwargs)
        return getattr(super(cls, owner), entry)(*args, **kwargs)

    return call
