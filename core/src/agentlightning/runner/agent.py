"""The agent, as a runner calls it on an attempt, here or in a worker process: under the attempt's identity,
with the adapters of its framework, and with what plugins do around its attempts (hook ``agl_agents``).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from opentelemetry import trace

from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.installation import capturing, installed
from agentlightning.decorator.agents import RunnableAgent, as_agent
from agentlightning.plugins.manager import Plugins, load, pick
from agentlightning.proxies import go_direct
from agentlightning.runner.outcome import Outcome, outcome_of_error, read_return
from agentlightning.runner.threads import in_thread
from agentlightning.semconv import ROLLOUT_SPAN
from agentlightning.store.base import Store
from agentlightning.types import AttemptedRollout, Rollout, Span


class HostedAgent:
    """An agent that a runner calls. A plugin's subclass may do more around each :meth:`attempt`. It is sent
    to worker processes without its runner.
    """

    select: Any = None
    """Which of its calls are trained, as a run's ``select``; ``None``: as the run says."""
    only_here = ""
    """Why it can run in the trainer's process only, if so."""
    runner: Any = None

    def __init__(self, agent: RunnableAgent) -> None:
        self.agent = agent

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "runner": None}

    def capturing(self, instrumentors: Sequence[Any]) -> AbstractContextManager[None]:
        """Return the block in which the agent's process captures what the agent does."""
        return capturing(instrumentors)

    async def attempt(self, rollout: Rollout, context: AttemptContext, counts: Counter[str]) -> Outcome:
        """Run the agent on one attempt and return how it ended. What the agent raises is raised. ``counts``:
        :attr:`.Runner.counts`.
        """
        return read_return(
            await self.call(rollout.mode, context, (rollout.input, context.resources, rollout))
        )

    async def call(
        self, mode: str, context: AttemptContext, given: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the entry of ``mode`` with these arguments, in a thread if it is no coroutine function."""
        entry = functools.partial(self.agent.entry(mode), *given, **(named or {}))
        result = await (entry() if inspect.iscoroutinefunction(entry) else in_thread(entry))
        if inspect.isawaitable(result):
            result = await result
        if context.errors:
            raise context.errors[0]
        return result

    async def settle(
        self,
        outcome: Outcome,
        lease: AttemptedRollout,
        store: Store,
        spans: list[Span],
        counts: Counter[str],
    ) -> Outcome:
        """Return the outcome as it is written, in the runner's process, when no further call can arrive. It
        may add to the attempt's ``spans``.
        """
        return outcome


def hosted(agent: Any, plugins: Plugins | None = None, trainer: Any = None) -> HostedAgent:
    """Return the agent as ``plugins`` (default: the process's own) have it called; ``trainer``: whose run
    this is.
    """
    if isinstance(agent, HostedAgent):
        return agent
    agent = as_agent(agent)
    made: HostedAgent | None = (plugins or load()).first("agl_agents", agent=agent, trainer=trainer)
    return made or HostedAgent(agent)


def instrumentors(plugins: Plugins, adapters: Sequence[str] = ()) -> list[Any]:
    """Return the instrumentors of the named adapters and of those whose framework is imported here. Raise
    ``PluginError`` for an unknown name.
    """
    for name in adapters:
        pick(plugins.adapters, "adapter", name)
    return [
        spec.instrumentor()
        for spec in plugins.adapters.values()
        if spec.name in adapters or spec.framework in sys.modules
    ]


async def execute(
    agent: HostedAgent, rollout: Rollout, context: AttemptContext, counts: Counter[str]
) -> Outcome:
    """Run the agent on one attempt and return how the attempt ended. An error that the agent raises becomes
    its outcome, ``sys.exit()`` too; cancellation and ``KeyboardInterrupt`` are raised. One span is around it
    all, so that the spans of its framework form one tree. ``counts``: :attr:`.Runner.counts`.
    """
    go_direct(context.gateway)  # here, since this is the process in which the agent makes its clients
    around: AbstractContextManager[Any] = nullcontext()
    with attempt_context(context):
        if installed():
            tracer, task = trace.get_tracer("agentlightning.runner"), {"agl.task_id": rollout.task_id or ""}
            around = tracer.start_as_current_span(ROLLOUT_SPAN, attributes=task)
        with around:
            try:
                return await agent.attempt(rollout, context, counts)
            except (asyncio.CancelledError, KeyboardInterrupt):
                raise
            except BaseException as raised:  # any other error ends this attempt and not the run
                return outcome_of_error(next(iter(context.errors), raised))
