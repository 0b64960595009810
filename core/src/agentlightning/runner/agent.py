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
from agentlightning.capture.emit import returned_reward_span
from agentlightning.capture.installation import capturing, installed
from agentlightning.decorator.agents import LitAgent, as_agent
from agentlightning.plugins.manager import Plugins, load, pick
from agentlightning.plugins.suite import checkout, not_installed
from agentlightning.runner.outcome import Outcome, outcome_of_error, read_return
from agentlightning.runner.threads import in_thread
from agentlightning.semconv import ROLLOUT_SPAN
from agentlightning.types import Rollout, UsageError
from agentlightning.webserver.proxies import go_direct


class HostedAgent:
    """An agent that a runner calls. A plugin's subclass may do more around each :meth:`attempt`. It is sent
    to worker processes without its runner.
    """

    select: Any = None
    """Which of its calls are trained, as a run's ``select``; ``None``: as the run says."""
    only_here = ""
    """Why it can run in the trainer's process only, if so."""
    runner: Any = None

    def __init__(self, agent: LitAgent[Any]) -> None:
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
        result = await self.call(rollout.mode, context, (rollout.input, context.resources, rollout))
        return self.outcome(result, context)

    async def call(
        self, mode: str, context: AttemptContext, given: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the entry of ``mode`` with these arguments, in a thread if it is no coroutine function."""
        entry = functools.partial(self.agent.entry(mode), *given, **(named or {}))
        result = await (entry() if self.agent.is_async_in(mode) else in_thread(entry))
        if inspect.isawaitable(result):
            result = await result
        if context.errors:
            raise context.errors[0]
        return result

    def outcome(self, result: Any, context: AttemptContext) -> Outcome:
        """Read what the agent returned. Its reward is the last span of ``outcome.returned``."""
        outcome = read_return(result, context.rollout_id, context.attempt_id)
        if outcome.reward is not None:
            outcome.returned.append(returned_reward_span(outcome.reward))
        return outcome


def hosted(agent: Any, plugins: Plugins | None = None, trainer: Any = None) -> HostedAgent:
    """Return the agent as ``plugins`` (default: the process's own) have it called; ``trainer``: whose run
    this is. Raises :class:`.UsageError` for an agent that needs a plugin which is not there.
    """
    if isinstance(agent, HostedAgent):
        return agent
    agent = as_agent(agent)
    made: HostedAgent | None = (plugins or load()).first("agl_agents", agent=agent, trainer=trainer)
    if made is not None:
        return made
    unread = [
        name for name in checkout()["agent"] if getattr(type(agent), name) is not getattr(LitAgent, name)
    ]
    if agent.trained_agents is not None:
        unread.append("trained_agents")
    if unread:
        raise UsageError(f"{type(agent).__name__} has {unread[0]}: {not_installed('agent', unread[0])}")
    return HostedAgent(agent)


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
