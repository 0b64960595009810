"""``@agl.agent``: decorate an existing agent class of any framework, in place.

Inside the entry methods, model calls get the agent's name, and ``select`` decides which are trained; the
results of the methods are rewarded. Invariants: the class object, its signature, its subclasses, its pickles
and what its methods return stay the same. Each result gets one reward: when entry methods of one object call
each other, only the outermost is rewarded, and the runner rewards the object that it runs.

A mark on a class holds for its subclasses: their own versions of an entry method are marked as well. Without
this, a subclass that overrides the method and does not call ``super()`` would silently lose its base's mark.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from agentlightning import semconv
from agentlightning.capture.call_hooks import CallHooks, hooked, undecorated, wrap_entry
from agentlightning.capture.context import AgentScope, current_attempt
from agentlightning.capture.emit import emit_reward
from agentlightning.capture.identity import inside_scope, open_scope
from agentlightning.decorator.reward_function import AgentError, RewardFunction
from agentlightning.plugins import manager
from agentlightning.types.select import Predicate, Select, selector

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


AGENT_SPECS = "__agl_agent__"
"""Attribute of a decorated class: the :class:`AgentSpec` of each of its own entry methods."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The arguments of ``@agl.agent`` for a class."""

    name: str
    selects: Predicate | None = None
    reward: RewardFunction | None = None


def entry_methods_of(cls: type) -> list[str]:
    """Return the decorated entry methods of a class, its own and inherited ones."""
    return list(dict.fromkeys(entry for base in cls.__mro__ for entry in vars(base).get(AGENT_SPECS, ())))


def agent_spec(owner: Any, entry: str) -> AgentSpec | None:
    """Return the spec of an object, or of a class, that runs ``entry``; ``None`` if no class is decorated.

    The name is that of the nearest decorated class; ``selects`` and ``reward`` are those of the nearest class
    that has them.
    """
    classes = (owner if isinstance(owner, type) else type(owner)).__mro__
    decorated: list[dict[str, AgentSpec]] = [vars(c)[AGENT_SPECS] for c in classes if AGENT_SPECS in vars(c)]
    specs = [own.get(entry) or next(iter(own.values())) for own in decorated]
    if not specs:
        return None
    selects = next((spec.selects for spec in specs if spec.selects is not None), None)
    reward = next((spec.reward for spec in specs if spec.reward is not None), None)
    return AgentSpec(specs[0].name, selects, reward)


class EntryCall(CallHooks):
    """A call of ``entry`` of ``owner``."""

    def __init__(self, owner: Any, spec: AgentSpec, entry: str) -> None:
        self.owner, self.spec, self.entry = owner, spec, entry
        self._scope: AgentScope | None = None

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Run the block in the agent's scope."""
        if self._scope is None:
            self._scope = open_scope(self.spec.name, self.owner, self.spec.selects)
        self._scope.suspended = False
        try:
            with inside_scope(self._scope):
                yield
        finally:
            self._scope.suspended = True

    def on_return(self, result: Any) -> None:
        """Reward the result of a plain method."""
        if (reward := self._reward_function()) is None:
            return
        if inspect.isawaitable(result) or hasattr(result, "__anext__") or hasattr(result, "__aiter__"):
            raise reward.uncallable(
                f"{self.entry}() returned a {type(result).__name__}, whose work is still to be done; name "
                "the method that does it in methods=[…]"
            )
        value = reward.call(result, self.owner, self._cannot_await())
        self._emit(value if value is None or isinstance(value, float) else asyncio.run(value))

    async def on_async_return(self, result: Any) -> None:
        """Reward an awaited result, or the last item of a stream."""
        if (reward := self._reward_function()) is not None:
            self._emit(await reward.call_async(result, self.owner))

    def _reward_function(self) -> RewardFunction | None:
        """Return the function that rewards this call; ``None`` where nothing or somebody else does."""
        attempt, scope = current_attempt(), self._scope
        if attempt is None or scope is None or not scope.outermost:
            return None
        return None if self._is_runner_agent(attempt.root_agent) else self.spec.reward

    def _is_runner_agent(self, scored: Any) -> bool:
        """Return whether the runner runs this object. A static or class method belongs to its class."""
        return scored is self.owner or (isinstance(self.owner, type) and isinstance(scored, self.owner))

    def _cannot_await(self) -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return ""
        return (
            f"{self.entry}() is a plain method on the event loop, which cannot wait: make the reward a plain "
            "function, or decorate an async method"
        )

    def _emit(self, value: float | None) -> None:
        """Reward each call that the agent made itself, and the agent."""
        attempt = current_attempt()
        if attempt is None or self._scope is None:
            return
        if attempt.entry_reward is not None and self._scope.outer is None:
            attempt.entry_reward[:] = [value]  # the outermost agent of an entry is like a runner's agent
            return
        if value is None:
            return
        tags = {semconv.AGENT_NAME: self.spec.name}
        for span_id in self._scope.call_span_ids:
            emit_reward(value, final=False, attributes={**tags, semconv.REWARD_SPAN_ID: span_id})
        emit_reward(value, agent=self.spec.name, attributes=tags)


HOOK = "__init_subclass__"
Mark = Callable[[type], None]
"""Marks what a subclass overrides."""


def mark_subclasses(cls: type, mark: Mark) -> None:
    """Call ``mark`` with every subclass of ``cls``: now with those that exist, and later with each that is
    made, once for each class.
    """
    for subclass in _below(cls):
        mark(subclass)
    if getattr(getattr(cls, HOOK), "__agl_marks__", False):
        return  # a base of this class is marked

    own = vars(cls).get(HOOK)

    def init_subclass(subclass: type, /, **kwargs: Any) -> None:
        _next_hook(subclass, hook, own).__get__(None, subclass)(**kwargs)
        mark(subclass)

    init_subclass.__agl_marks__ = True  # type: ignore[attr-defined]
    hook: Any = classmethod(init_subclass)
    setattr(cls, HOOK, hook)


def _below(cls: type) -> Iterator[type]:
    """All subclasses, nearest first."""
    children: list[type] = type.__subclasses__(cls)
    for subclass in children:
        yield subclass
        yield from _below(subclass)


def _next_hook(subclass: type, hook: Any, own: Any) -> Any:
    """What ``hook`` stands in place of: the class's own hook, else that of the next base. The class is looked
    for by its hook, because ``dataclass(slots=True)`` replaces it by another with the same attributes.
    """
    if own is not None:
        return own
    classes = iter(subclass.__mro__)
    for base in classes:
        if vars(base).get(HOOK) is hook:
            break
    return next(vars(base)[HOOK] for base in classes if HOOK in vars(base))
