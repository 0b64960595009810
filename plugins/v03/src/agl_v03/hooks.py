"""Hooks around an attempt: methods of the agent, and the hooks of ``Trainer(hooks=[…])``.

A hook takes any of ``task, rollout, result, error, spans, agent, runner, tracer`` by name, in any order.
Invariant: a start hook that raises fails the attempt; an end hook that raises is logged and counted.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.decorator.agents import as_agent
from agentlightning.runner.agent import HostedAgent
from agentlightning.runner.outcome import Outcome
from agentlightning.store.base import Store
from agentlightning.types import AttemptedRollout, Rollout, Span
from agl_v03.former_agents import (
    Surroundings,
    entry_arguments,
    former_result,
    hook_arguments,
    reads_its_trace,
)
from agl_v03.lit_agent import LitAgent
from agl_v03.sessions import capturing_for
from agl_v03.supplied import read_result, settle

log = logging.getLogger(__name__)
POSITIONAL = {
    "on_rollout_start": ("task", "rollout"),
    "on_trace_start": ("task", "rollout"),
    "on_trace_end": ("task", "rollout", "spans"),
    "on_rollout_end": ("task", "rollout", "result", "error"),
}
"""Hook → arguments by position, for a hook whose parameters have other names."""


class Hook:
    """Hooks of a trainer's or runner's attempts. Override any, as functions or coroutine functions.

    A hook runs where the agent runs; in a worker process ``runner`` is ``None``. ``spans``: the spans of the
    attempt that have ended in this process.
    """

    def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Rollout) -> Any:
        """Called before an attempt."""

    def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Rollout) -> Any:
        """Called when the attempt's span has begun."""

    def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Rollout) -> Any:
        """Called when the agent has returned or raised, before the attempt's span ends."""

    def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Rollout, spans: Sequence[Span]) -> Any:
        """Called after an attempt, also after one that failed."""


class HookedAgent(HostedAgent):
    """An agent of Agent Lightning 0.1 to 0.3 with what runs it: hooks, and a tracer, a runner and a trainer
    for it and for the hooks. The runner and the trainer do not go into worker processes.
    """

    def __init__(
        self, agent: Any, hooks: Sequence[Any] = (), tracer: Any = None, trainer: Any = None
    ) -> None:
        super().__init__(as_agent(agent))
        self.hooks, self.tracer, self.trainer = tuple(hooks), tracer, trainer
        if self.hooks:
            self.only_here = "hooks are called where the agent runs, and `runner` names another place"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "trainer": None}

    def capturing(self, instrumentors: Sequence[Any]) -> AbstractContextManager[None]:
        """Capture, if the tracer does, and tell the tracer."""
        return capturing_for(self.tracer, instrumentors)

    async def attempt(self, rollout: Rollout, context: AttemptContext, counts: Counter[str]) -> Outcome:
        """Run the agent with its hooks, with the arguments that it expects. Failed end hooks are counted in
        ``counts`` as ``end-hook-failed``.
        """
        calls = HookCalls(self, rollout, context, counts)
        result: Any = None
        error: BaseException | None = None
        with attempt_context(calls.context):
            try:
                await calls.start()
                entry = self.agent.entry(rollout.mode)
                given, named = entry_arguments(entry, rollout, calls.context)
                result = await self.call(rollout.mode, calls.context, given, named)
                outcome = read_result(former_result(result, calls.context, calls.spans), calls.context)
                if outcome.supplied is None:
                    calls.spans.extend(outcome.returned)
                return outcome
            except BaseException as raised:
                error = raised
                raise
            finally:
                await calls.end(result, error)

    async def settle(
        self,
        outcome: Outcome,
        lease: AttemptedRollout,
        store: Store,
        spans: list[Span],
        counts: Counter[str],
    ) -> Outcome:
        """Match the transitions that the agent returned with its recorded calls."""
        return await settle(outcome, lease, store, spans, counts)


class HookCalls:
    """Calls the hooks of one attempt. ``context``: the attempt's context, which also collects spans if a hook
    takes them. Failures are counted in ``counts`` as ``end-hook-failed``.
    """

    def __init__(
        self, hooked: HookedAgent, rollout: Rollout, context: AttemptContext, counts: Counter[str]
    ) -> None:
        self._agent, self._hooks = hooked.agent, hooked.hooks
        around = Surroundings(hooked.trainer, hooked.runner, hooked.tracer)
        self.spans = around.spans
        self._known: dict[str, Any] = {
            "task": rollout.input,
            "rollout": rollout,
            "result": None,
            "error": None,
            "spans": self.spans,
            "agent": self._agent,
            "runner": hooked.runner,
        }
        self._around = around
        self._counts = counts
        self.context = context
        if self._hooks or reads_its_trace(self._agent):

            def sink(span: Span) -> None:
                context.sink(around.add(span))

            self.context = dataclasses.replace(context, sink=sink, surroundings=around, keeps_content=True)

    async def start(self) -> None:
        """Call the start hooks."""
        for hook in ("on_rollout_start", "on_trace_start"):
            for owner in (self._agent, *self._hooks):
                await self._call(owner, hook)

    async def end(self, result: Any, error: BaseException | None) -> None:
        """Call the end hooks, in reverse order."""
        self._known.update(result=result, error=error)
        for hook in ("on_trace_end", "on_rollout_end"):
            for owner in (*reversed(self._hooks), self._agent):
                try:
                    await self._call(owner, hook)
                except Exception:
                    self._counts["end-hook-failed"] += 1
                    log.exception("%s of rollout %s failed", hook, self._known["rollout"].rollout_id)

    async def _call(self, owner: Any, hook: str) -> None:
        if not _overrides(owner, hook):
            return
        method = getattr(owner, hook)
        known = {**self._known, "tracer": self._around.tracer}
        args, named = _arguments(method, known, POSITIONAL[hook])
        if owner is self._agent and (former := hook_arguments(hook, method, known)) is not None:
            args, named = (), former
        answer = method(*args, **named)
        if inspect.isawaitable(answer):
            await answer


def _overrides(owner: Any, hook: str) -> bool:
    own = getattr(type(owner), hook, None) or getattr(owner, hook, None)
    return own is not None and own not in (getattr(LitAgent, hook), getattr(Hook, hook))


def _arguments(
    method: Callable[..., Any], known: dict[str, Any], order: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments: by name if the method uses the names above (all of them for ``**kwargs``), else
    by position.
    """
    parameters = inspect.signature(method).parameters.values()
    kinds = {p.kind for p in parameters}
    named = {p.name: known[p.name] for p in parameters if p.name in known}
    single = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = {p.name for p in single if p.default is p.empty} - set(named)
    if unknown or (inspect.Parameter.VAR_POSITIONAL in kinds and not single):
        return tuple(known[name] for name in order), {}
    return (), known if inspect.Parameter.VAR_KEYWORD in kinds else named
