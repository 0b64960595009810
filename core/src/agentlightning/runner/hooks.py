"""HookCalls of an attempt, told to the agent's own methods and to ``Trainer(hooks=[…])``.

A hook names what it wants among ``task, rollout, result, error, spans, agent, runner, tracer``, in any order.
Invariant: a start hook that raises fails the attempt; an end hook that raises is logged and counted.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentlightning.capture.context import AttemptContext
from agentlightning.decorator.agents import LitAgent, as_agent
from agentlightning.types import Rollout, Span

log = logging.getLogger(__name__)
POSITIONAL = {
    "on_rollout_start": ("task", "rollout"),
    "on_trace_start": ("task", "rollout"),
    "on_trace_end": ("task", "rollout", "spans"),
    "on_rollout_end": ("task", "rollout", "result", "error"),
}
"""Moment → what a hook gets by position, if it uses names of its own."""


class Hook:
    """Listens to a trainer's or runner's attempts: override what is of interest, plain or as a coroutine.

    With worker processes it is sent there with the agent, and ``runner`` is ``None``. ``spans``: those that
    ended in this process so far.
    """

    def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Rollout) -> Any:
        """Before an attempt."""

    def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Rollout) -> Any:
        """The attempt's span has begun."""

    def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Rollout) -> Any:
        """The agent has returned or raised; the attempt's span is about to end."""

    def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Rollout, spans: Sequence[Span]) -> Any:
        """After an attempt, whatever became of it."""


class HookedAgent(LitAgent[Any]):
    """An agent with hooks around it. ``runner``: whose agent it is; not sent to other processes."""

    def __init__(self, agent: Any, hooks: Sequence[Any], tracer: Any = None) -> None:
        self.agent: LitAgent[Any] = as_agent(agent)
        self.name = getattr(self.agent, "name", type(self.agent).__name__)
        self.hooks, self.tracer = tuple(hooks), tracer
        self.runner: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "runner": None}

    def entry(self, mode: str) -> Callable[..., Any]:
        """The agent's own."""
        return self.agent.entry(mode)

    def is_async_in(self, mode: str) -> bool:
        """As the agent's own."""
        return self.agent.is_async_in(mode)


def with_hooks(agent: Any, hooks: Sequence[Any], tracer: Any = None) -> Any:
    """The agent with ``hooks`` around it; the agent itself where there are none."""
    return HookedAgent(agent, hooks, tracer) if hooks else agent


class HookCalls:
    """The moments of one attempt. ``context``: the attempt's, with an ear on its spans if anyone listens."""

    def __init__(
        self, agent: LitAgent[Any], rollout: Rollout, context: AttemptContext, counts: Counter[str]
    ) -> None:
        hooked = isinstance(agent, HookedAgent)
        self._agent: LitAgent[Any] = agent.agent if isinstance(agent, HookedAgent) else agent
        self._hooks: tuple[Any, ...] = agent.hooks if isinstance(agent, HookedAgent) else ()
        self._spans: list[Span] = []
        self._known: dict[str, Any] = {
            "task": rollout.input,
            "rollout": rollout,
            "result": None,
            "error": None,
            "spans": self._spans,
            "agent": self._agent,
            "runner": agent.runner if isinstance(agent, HookedAgent) else None,
            "tracer": agent.tracer if isinstance(agent, HookedAgent) else None,
        }
        self._counts = counts
        self.context = context
        if hooked or _overrides(self._agent, "on_trace_end") or _overrides(self._agent, "on_rollout_end"):
            self.context = dataclasses.replace(context, sink=self._recording_sink(context))

    async def start(self) -> None:
        """The attempt begins."""
        for moment in ("on_rollout_start", "on_trace_start"):
            for listener in (self._agent, *self._hooks):
                await self._call(listener, moment)

    async def end(self, result: Any, error: BaseException | None) -> None:
        """The attempt ends; in reverse order."""
        self._known.update(result=result, error=error)
        for moment in ("on_trace_end", "on_rollout_end"):
            for listener in (*reversed(self._hooks), self._agent):
                try:
                    await self._call(listener, moment)
                except Exception:
                    self._counts["end-hook-failed"] += 1
                    log.exception("%s of rollout %s failed", moment, self._known["rollout"].rollout_id)

    def add_span(self, span: Span) -> Span:
        """A span that hooks are to know of and that is not delivered; the span."""
        self._spans.append(span)
        return span

    async def _call(self, listener: Any, moment: str) -> None:
        if not _overrides(listener, moment):
            return
        method = getattr(listener, moment)
        args, named = _arguments(method, self._known, POSITIONAL[moment])
        answer = method(*args, **named)
        if inspect.isawaitable(answer):
            await answer

    def _recording_sink(self, context: AttemptContext) -> Callable[[Span], None]:
        def sink(span: Span) -> None:
            self._spans.append(span)
            context.sink(span)

        return sink


def _overrides(listener: Any, moment: str) -> bool:
    own = getattr(type(listener), moment, None) or getattr(listener, moment, None)
    return own is not None and own not in (getattr(LitAgent, moment), getattr(Hook, moment))


def _arguments(
    method: Callable[..., Any], known: dict[str, Any], order: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By name, if the method uses our names (all of them, where it takes any); else by position."""
    parameters = inspect.signature(method).parameters.values()
    kinds = {p.kind for p in parameters}
    named = {p.name: known[p.name] for p in parameters if p.name in known}
    single = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = {p.name for p in single if p.default is p.empty} - set(named)
    if unknown or (inspect.Parameter.VAR_POSITIONAL in kinds and not single):
        return tuple(known[name] for name in order), {}
    return (), known if inspect.Parameter.VAR_KEYWORD in kinds else named
