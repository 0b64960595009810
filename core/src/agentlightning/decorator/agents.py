"""Make agents that a runner can run of functions, and of objects with ``run``.

``@agl.rollout`` turns a function ``(task, llm) -> float`` into an agent and leaves it callable. An object of
a class that is decorated with ``@agl.agent(reward=…)`` may return anything: the reward function turns it into
the rollout's reward. Plugins have classes of agents of their own.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from agentlightning.capture.call_hooks import wrap_entry
from agentlightning.capture.context import current_attempt
from agentlightning.decorator import agent as agent, agent_spec, entry_methods_of
from agentlightning.decorator.reward_function import AgentError as AgentError, RewardFunction
from agentlightning.types import LLM, PromptTemplate, Resource, Rollout


class RunnableAgent:
    """What a runner runs. A subclass says how, by :meth:`rollout`, a plain or a coroutine function."""

    trusted = True
    """Whether it is the user's code: its word about itself counts unless ``agent.trusted`` says otherwise."""
    judged = False
    """Whether a reward function or rule, and not the agent, gives the reward."""

    def entry(self, mode: str) -> Callable[[Any, dict[str, Resource], Rollout], Any]:
        """Return the method that runs a task in ``mode``. A coroutine function is awaited on the event loop;
        any other is called in a thread, and what it returns is awaited if it can be.
        """
        return self.rollout

    def rollout(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Any:
        """Run one task and return its reward, or ``None``: rewards were emitted, or are missing.
        ``resources``: the algorithm's resources by name, such as an :class:`.LLM`.
        """
        raise AgentError(f"{type(self).__name__} does not define rollout")


class FunctionAgent(RunnableAgent):
    """A function as an agent. Its first parameter is the task. The other parameters are filled by name:
    ``llm`` and ``prompt_template`` with the first resource of that kind, ``resources``, ``rollout``, or the
    name of a resource.

    ``score``: the reward function of the class, if ``function`` is a method of an object of a decorated
    class. It turns what the method returns into the rollout's reward.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, score: RewardFunction | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.score, self.judged = function, score, score is not None
        self.name = name or getattr(function, "__name__", "agent")
        self._parameters = _parameters(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return wrap_entry(self.function)(*args, **kwargs)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by name if ``@agl.rollout`` replaced the function by this agent; else the function and its
        name, or the method alone: importing its class brings the reward function.
        """
        if self.score is not None:
            return as_agent, (self.function,)
        place: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in getattr(self, "__qualname__", "").split("."):
            place = getattr(place, part, None)
        make = functools.partial(FunctionAgent, name=self.name)
        return self.__qualname__ if place is self else (make, (self.function,))

    def entry(self, mode: str) -> Callable[[Any, dict[str, Resource], Rollout], Any]:
        return self._rollout_async if inspect.iscoroutinefunction(self.function) else self.rollout

    async def _rollout_async(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Any:
        return await self.rollout(task, resources, rollout)

    def rollout(self, task: Any, resources: dict[str, Resource], rollout: Rollout) -> Any:
        owner = getattr(self.function, "__self__", None)
        if self.score is not None and (attempt := current_attempt()) is not None:
            attempt.root_agent = owner
        result = self.function(task, **self._arguments(resources, rollout))
        if self.score is None:
            return result
        if inspect.isawaitable(result):
            return self._score_awaited(self.score, result, owner)
        return self.score.call(result, owner)

    async def _score_awaited(self, score: RewardFunction, result: Any, owner: Any) -> float | None:
        return await score.call_async(await result, owner)

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


def as_agent(target: Any) -> RunnableAgent:
    """Return the agent for a function, a class, an object with ``run`` or with an entry method of
    ``@agl.agent``, and a :class:`RunnableAgent` itself. Raise :class:`.AgentError` for anything else.
    """
    if isinstance(target, type):
        target = _instantiate(target)
    if isinstance(target, RunnableAgent):
        name = next(iter(entry_methods_of(type(target))), "")
        if (spec := agent_spec(target, name)) is not None and spec.reward is not None:
            raise AgentError(
                f"{type(target).__name__} is an agent that returns its reward itself: leave reward= out of "
                "its @agl.agent, or make it a class of its own with run(task, …)"
            )
        return target
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return _of_entry(target, None)
    for name in ("run", *entry_methods_of(type(target))):
        if callable(entry := getattr(target, name, None)):
            return _of_entry(entry, type(target).__name__)
    raise AgentError(
        f"{target!r} is no agent: give a function (task, llm) -> reward, or an object with run(task, …)"
    )


def _of_entry(function: Any, name: str | None) -> FunctionAgent:
    """Return the agent of a function or a method. A method whose class is decorated with a reward function is
    scored by it, under the name that the class was given.
    """
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type):
        spec = agent_spec(owner, getattr(function, "__name__", ""))
        if spec is not None and spec.reward is not None:
            return FunctionAgent(function, name=spec.name, score=spec.reward)
    return FunctionAgent(function, name=name)


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
