"""Make agents that a runner can run of functions, subclasses of ``LitAgent``, and objects with ``run``.

``@agl.rollout`` turns a function ``(task, llm) -> float`` into an agent and leaves it callable.
``LitAgent`` is the class form. An object of a class that is decorated with ``@agl.agent(reward=…)`` may
return anything: the reward function turns it into the rollout's reward.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from agentlightning.capture.call_hooks import wrap_entry
from agentlightning.capture.context import current_attempt
from agentlightning.decorator import agent as agent, agent_spec, entry_methods_of
from agentlightning.decorator.reward_function import AgentError as AgentError, RewardFunction
from agentlightning.types import LLM, PromptTemplate, Resource, Rollout, Span, Triplet

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


class LitAgent(Generic[Task]):
    """An agent as a class. Override ``rollout`` (sync) or ``rollout_async``; the training and validation
    methods call it. ``resources``: the algorithm's resources by name, such as an :class:`.LLM`.

    ``trained_agents``: a pattern; the run trains the agents in whose name it is found, unless the trainer is
    given ``select`` or ``adapter``. Within a rollout an agent has its ``tracer``, ``runner`` and ``trainer``.
    """

    trusted = True
    """Whether it is the user's code: its word about itself counts unless ``agent.trusted`` says otherwise."""
    judged = False
    """Whether a reward function or rule, and not the agent, gives the reward."""
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
        """Whether the tasks of at least one mode run on the event loop; see :meth:`is_async_in`."""
        return self.is_async_in("train") or self.is_async_in("val")

    def is_async_in(self, mode: str) -> bool:
        """Return whether :meth:`entry` of ``mode`` is awaited on the event loop; else it runs in a thread."""
        return self._entry_name(mode).endswith("_async") or inspect.iscoroutinefunction(self.entry(mode))

    def entry(self, mode: str) -> Callable[[Task, dict[str, Resource], Rollout], Any]:
        """Return the method that runs a task in ``mode``. Of the overridden methods, the mode's own comes
        before ``rollout`` and this before ``training_rollout``, a subclass's before a base class's, and the
        coroutine form before the other.
        """
        method: Callable[[Task, dict[str, Resource], Rollout], Any] = getattr(self, self._entry_name(mode))
        return method

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


class FunctionAgent(LitAgent[Any]):
    """A function as an agent. Its first parameter is the task. The other parameters are filled by name:
    ``llm`` and ``prompt_template`` with the first resource of that kind, ``resources``, ``rollout``, or the
    name of a resource.
    """

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or getattr(function, "__name__", "agent")
        self._parameters = _parameters(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return wrap_entry(self.function)(*args, **kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by name if ``@agl.rollout`` replaced the function by this agent; else function and name."""
        place: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in getattr(self, "__qualname__", "").split("."):
            place = getattr(place, part, None)
        make = functools.partial(FunctionAgent, name=self.name)
        return self.__qualname__ if place is self else (make, (self.function,))

    def _entry_name(self, mode: str) -> str:
        return "rollout_async" if inspect.iscoroutinefunction(self.function) else "rollout"

    def rollout(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Result:
        result: Result = self.function(task, **self._arguments(resources, rollout))
        return result

    async def rollout_async(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Result:
        answer: Any = self.rollout(task, resources, rollout)
        result: Result = await answer
        return result

    def _arguments(self, resources: dict[str, Resource], rollout: Rollout) -> dict[str, Any]:
        known: dict[str, Any] = {**resources, "rollout": rollout, "resources": resources}
        for name, kind in (("llm", LLM), ("prompt_template", PromptTemplate)):
            first = next((r for r in resources.values() if isinstance(r, kind)), None)
            known.setdefault(name, first)
        given = {name: known[name] for name in self._parameters if known.get(name) is not None}
        for name, required in self._parameters.items():
            if required and name not in given:
                raise AgentError(
                    f"{self.name}() asks for {name!r}, but the rollout was given only {sorted(resources)}; "
                    "name the parameter after a resource, or use llm, prompt_template, resources or rollout"
                )
        return given


class ScoredAgent(FunctionAgent):
    """A method of ``owner``, whose class is decorated with a reward function, as an agent. The function turns
    what the method returns into the rollout's reward.
    """

    judged = True

    def __init__(self, function: Callable[..., Any], owner: Any, score: RewardFunction, *, name: str) -> None:
        super().__init__(function, name=name)
        self.owner, self.score = owner, score

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the method: importing its class brings the reward function."""
        return as_agent, (self.function,)

    def rollout(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Any:
        if (attempt := current_attempt()) is not None:
            attempt.root_agent = self.owner
        result: Any = super().rollout(task, resources, rollout)
        if inspect.isawaitable(result):
            return self._score_awaited(result)
        return self.score.call(result, self.owner)

    async def _score_awaited(self, result: Any) -> Result:
        return await self.score.call_async(await result, self.owner)


def _parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the parameters after the first (the task), and whether each is required."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise AgentError(
            f"{getattr(function, '__name__', function)}() takes no task; its first parameter must be the task"
        )
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default is p.empty for p in parameters[1:] if p.kind in named}


def rollout(function: Callable[..., Any]) -> FunctionAgent:
    """Make ``function`` an agent: ``@agl.rollout async def solve(task, llm) -> float``. It stays callable."""
    return FunctionAgent(function)


def as_agent(target: Any) -> LitAgent[Any]:
    """Return the agent for a LitAgent, a function, a class, or an object with ``run`` or with an entry method
    of ``@agl.agent``. Raise :class:`.AgentError` for anything else.
    """
    if isinstance(target, type):
        target = _instantiate(target)
    if isinstance(target, LitAgent):
        return _refuse_scored(target)
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return _scored_method(target) or FunctionAgent(target)
    for name in ("run", *entry_methods_of(type(target))):
        entry = getattr(target, name, None)
        if callable(entry):
            return _scored_method(entry) or FunctionAgent(entry, name=type(target).__name__)
    raise AgentError(
        f"{target!r} is no agent: give a function (task, llm) -> reward, a LitAgent, or an object "
        "with run(task, …)"
    )


def _scored_method(function: Any) -> FunctionAgent | None:
    """Return the agent of a method whose class is decorated with a reward function; else ``None``."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    spec = None if owner is None or isinstance(owner, type) else agent_spec(owner, name)
    if spec is None or spec.reward is None:
        return None
    return ScoredAgent(function, owner, spec.reward, name=spec.name)


def _refuse_scored(agent: LitAgent[Any]) -> LitAgent[Any]:
    name = next(iter(entry_methods_of(type(agent))), None)
    spec = agent_spec(agent, name) if name else None
    if spec is not None and spec.reward is not None:
        raise AgentError(
            f"{type(agent).__name__} is a LitAgent, which returns its reward itself: leave reward= out of "
            "its @agl.agent, or make it a class of its own with run(task, …)"
        )
    return agent


def _instantiate(cls: type) -> Any:
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise AgentError(
            f"{cls.__name__} cannot be made without arguments ({error}); give an object of it, e.g. "
            f"agent = {cls.__name__}(…)"
        ) from None
    except ValueError:  # a class written in C may have no signature
        pass
    return cls()
