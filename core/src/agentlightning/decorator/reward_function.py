"""Call the reward function of a decorated class with the result of an entry method.

Invariants: the function returns a finite number, or ``None`` for *missing*; anything else fails the attempt
with a message that names function and agent. Model calls of the function itself are never trained.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentlightning.capture.context import current_attempt, current_task
from agentlightning.capture.identity import inside_scope, open_scope
from agentlightning.capture.records import reward_number
from agentlightning.types import UsageError


class AgentError(UsageError, TypeError):
    """The object cannot be run as an agent; the message says what it needs."""


class RewardFailed(UsageError):
    """A reward function raised, or could not be called: the attempt fails as if its agent had raised."""


class BadReward(UsageError, ValueError):
    """A reward is no finite number: the attempt fails as ``bad-reward``."""


PARAMETERS = ("task", "result", "agent")
"""Parameters that a reward function may have."""
REWARD_AGENT = "reward"
"""The tag ``agent`` of the model calls that a reward function makes."""


class RewardFunction:
    """The reward function of the agent called ``agent``. ``names``: the parameters that it may take by name.
    Raise :class:`AgentError` if it cannot be called.
    """

    def __init__(self, function: Callable[..., Any], agent: str, names: Sequence[str] = PARAMETERS) -> None:
        if not callable(function):
            raise AgentError(f"@agl.agent: reward is {function!r}; give a function that takes the result")
        self.function = function
        self.label = f"the reward function {_function_name(function)}() of agent {agent!r}"
        self._parameters = _parameters(function, self.label, names)
        """Parameters to pass by name; ``None``: pass the result alone."""

    @property
    def takes_result_alone(self) -> bool:
        """Whether the function has one parameter, of any name."""
        return self._parameters is None

    def call(
        self, result: Any, owner: Any, cannot_await: str = "", **more: Any
    ) -> float | Coroutine[Any, Any, float | None] | None:
        """Return the reward of ``result``, or a coroutine that returns it. Raise :class:`RewardFailed` or
        :class:`BadReward`. ``cannot_await``: why a coroutine cannot be awaited here; empty where it can.
        ``more``: the values of further names, and of ``task`` where it is not the attempt's.
        """
        known = {"task": current_task(), "result": result, "agent": owner, **more}
        with self._as_reward_error():
            if self._parameters is None:
                value = self.function(result)
            else:
                value = self.function(**{name: known[name] for name in self._parameters})
        if not inspect.isawaitable(value):
            return self._checked(value)
        if not cannot_await:
            return self._await_value(value)
        if inspect.iscoroutine(value):
            value.close()
        raise self.uncallable(f"it is a coroutine function, and {cannot_await}")

    async def call_async(self, result: Any, owner: Any) -> float | None:
        """Return the reward of ``result``."""
        value = self.call(result, owner)
        return value if value is None or isinstance(value, float) else await value

    async def _await_value(self, value: Any) -> float | None:
        with self._as_reward_error():
            value = await value
        return self._checked(value)

    def _checked(self, value: Any) -> float | None:
        if value is None:
            return None
        try:
            return reward_number(value, "reward")
        except ValueError:
            raise self._add_fault(
                BadReward(
                    f"{self.label} returned {value!r:.200} ({type(value).__name__}): return a finite "
                    "number, or None if there is no reward"
                )
            ) from None

    @contextmanager
    def _as_reward_error(self) -> Iterator[None]:
        with inside_scope(open_scope(REWARD_AGENT, self, lambda tags: False)):
            try:
                yield
            except Exception as error:
                raise self._add_fault(RewardFailed(f"{self.label} raised {_describe(error)}")) from error

    def _add_fault(self, error: Exception) -> Exception:
        """Fail the attempt even if the agent's framework swallows the error."""
        if (attempt := current_attempt()) is not None:
            attempt.errors.append(error)
        return error

    def uncallable(self, why: str) -> Exception:
        """Return the error for a result with which the function cannot be called."""
        return self._add_fault(RewardFailed(f"{self.label} cannot be called: {why}"))


def _function_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _describe(error: Exception) -> str:
    """Return an error's type and message, and its place in the code."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _parameters(function: Callable[..., Any], label: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the parameters of ``function`` to pass by name; ``None``: it takes the result alone."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C, without a signature to look at
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return tuple(names)
    single = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    named = tuple(p.name for p in single if p.name in names and p.kind is not p.POSITIONAL_ONLY)
    needed = [p for p in single if p.default is p.empty and p.name not in named]
    if not needed and named:
        return named
    only = [p for p in needed if p.kind is not p.KEYWORD_ONLY]
    if not named and (len(only) == len(needed) == 1 or (not needed and len(single) < len(parameters))):
        return None
    raise AgentError(
        f"@agl.agent: {label} takes ({', '.join(map(str, parameters))}); it may take "
        f"{', '.join(names)} by name, or take the result as its only parameter"
    )
