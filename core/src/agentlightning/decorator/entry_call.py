"""One run of a marked class's entry method: its mark while it works, and its reward when it returns.

Invariant: of the entry methods that one object has at work inside each other, only the outermost is rewarded;
and the object that a runner runs is rewarded by the runner, so that each result is worth one reward.
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
from agentlightning.capture.emit.emitters import emit_reward
from agentlightning.capture.scope import inside_scope, open_scope
from agentlightning.decorator.reward_function import RewardFunction
from agentlightning.types.select import Predicate

AGENT_SPECS = "__agl_agent__"
"""Attribute of a marked class: its own entry methods → :class:`AgentSpec`."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What ``@agl.agent`` says of a class."""

    name: str
    selects: Predicate | None = None
    reward: RewardFunction | None = None


def entry_methods_of(cls: type) -> list[str]:
    """The entry methods of a class that are marked, its own or inherited."""
    return list(dict.fromkeys(entry for base in cls.__mro__ for entry in vars(base).get(AGENT_SPECS, ())))


def agent_spec(owner: Any, entry: str) -> AgentSpec | None:
    """What ``@agl.agent`` says of an object, or of a class, that runs ``entry``: the name is of its nearest
    marked class, the rest of the nearest that gives it. ``None``: no class is marked.
    """
    specs: list[AgentSpec] = []
    for base in (owner if isinstance(owner, type) else type(owner)).__mro__:
        marks: dict[str, AgentSpec] | None = vars(base).get(AGENT_SPECS)
        if marks:
            specs.append(marks.get(entry) or next(iter(marks.values())))
    if not specs:
        return None
    selects = next((spec.selects for spec in specs if spec.selects is not None), None)
    return AgentSpec(
        specs[0].name, selects, next((spec.reward for spec in specs if spec.reward is not None), None)
    )


class EntryCall(CallHooks):
    """``entry`` of ``owner`` at work."""

    def __init__(self, owner: Any, spec: AgentSpec, entry: str) -> None:
        self.owner, self.spec, self.entry = owner, spec, entry
        self._mark: AgentScope | None = None

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Code within the block is the method's own."""
        if self._mark is None:
            self._mark = open_scope(self.spec.name, self.owner, self.spec.selects)
        self._mark.suspended = False
        try:
            with inside_scope(self._mark):
                yield
        finally:
            self._mark.suspended = True

    def on_return(self, result: Any) -> None:
        """Reward what a plain method returned."""
        if (reward := self._reward_function()) is None:
            return
        if inspect.isawaitable(result) or hasattr(result, "__anext__") or hasattr(result, "__aiter__"):
            raise reward.uncallable(
                f"{self.entry}() returned a {type(result).__name__}, whose work is still to be done; mark "
                "the method that does it, with methods=[…]"
            )
        value = reward.call(result, self.owner, self._cannot_await())
        self._emit(value if value is None or isinstance(value, float) else asyncio.run(value))

    async def on_async_return(self, result: Any) -> None:
        """Reward what was awaited, or read last."""
        if (reward := self._reward_function()) is not None:
            self._emit(await reward.call_async(result, self.owner))

    def _reward_function(self) -> RewardFunction | None:
        attempt, mark = current_attempt(), self._mark
        if attempt is None or mark is None or not mark.outermost or self._is_runner_agent(attempt.root_agent):
            return None
        return self.spec.reward

    def _is_runner_agent(self, scored: Any) -> bool:
        """Whether the runner's object is the one at work here; methods without one are of its class."""
        return scored is self.owner or (isinstance(self.owner, type) and isinstance(scored, self.owner))

    def _cannot_await(self) -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return ""
        return (
            f"{self.entry}() is a plain method that ran on the event loop, which cannot wait: make the "
            "reward a plain function, or mark an async method"
        )

    def _emit(self, value: float | None) -> None:
        """A reward of the calls that the agent made itself, each, and of the agent."""
        attempt = current_attempt()
        if attempt is None or self._mark is None:
            return
        if attempt.entry_reward is not None and self._mark.outer is None:  # as where a runner runs it
            attempt.entry_reward[:] = [value]
            return
        if value is None:
            return
        tags = {semconv.AGENT_NAME: self.spec.name}
        for span_id in self._mark.call_span_ids:
            emit_reward(value, final=False, attributes={**tags, semconv.REWARD_SPAN_ID: span_id})
        emit_reward(value, agent=self.spec.name, attributes=tags)
