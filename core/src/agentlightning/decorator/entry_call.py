"""Run one call of a decorated class's entry method in the agent's scope, and reward its result.

Invariant: each result gets one reward. When entry methods of one object call each other, only the outermost
is rewarded. The runner rewards the object that it runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentlightning import semconv
from agentlightning.capture.call_hooks import CallHooks
from agentlightning.capture.context import AgentScope, current_attempt
from agentlightning.capture.emit import emit_reward
from agentlightning.capture.identity import inside_scope, open_scope
from agentlightning.decorator.reward_function import RewardFunction
from agentlightning.types.select import Predicate

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
