"""Runs the agent on one attempt, under the attempt's identity, in a runner or in a worker process.

An error that the agent raises becomes its outcome. ``sys.exit()`` ends only the attempt.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace

from agentlightning import capture
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.emit.emitters import returned_reward_span
from agentlightning.compat.v0.former_agents import entry_arguments, former_result
from agentlightning.decorator.agents import LitAgent
from agentlightning.runner.agent.hooks import HookCalls
from agentlightning.runner.event_loops.threads import in_thread
from agentlightning.runner.outcomes.outcome import Outcome, outcome_of_error
from agentlightning.runner.outcomes.returned import read_return
from agentlightning.semconv import ROLLOUT_SPAN
from agentlightning.types import Rollout
from agentlightning.webserver.proxies import go_direct


async def execute(
    agent: LitAgent[Any], rollout: Rollout, context: AttemptContext, counts: Counter[str]
) -> Outcome:
    """Run the agent with its hooks and return how the attempt ended. Failed end hooks are counted in
    ``counts`` as ``end-hook-failed``. Cancellation and ``KeyboardInterrupt`` are raised.
    """
    result: Any = None
    error: BaseException | None = None
    go_direct(context.gateway)  # here, since this is the process in which the agent makes its clients
    hook_calls = HookCalls(agent, rollout, context, counts)
    with attempt_context(hook_calls.context), _rollout_span(rollout):
        try:
            await hook_calls.start()
            result = await _call(agent, rollout, hook_calls.context)
            if context.errors:
                raise context.errors[0]
            returned = former_result(result, hook_calls.context, hook_calls.spans)
            outcome = read_return(returned, context.rollout_id, context.attempt_id)
            if outcome.reward is not None:
                outcome.returned.append(hook_calls.add_span(returned_reward_span(outcome.reward)))
        except (asyncio.CancelledError, KeyboardInterrupt) as raised:
            error = raised
            raise
        except BaseException as raised:  # any other error ends this attempt and not the run
            error, outcome = raised, outcome_of_error(next(iter(context.errors), raised))
        finally:
            await hook_calls.end(result, error)
    return outcome


async def _call(agent: LitAgent[Any], rollout: Rollout, context: AttemptContext) -> Any:
    entry: Callable[..., Any] = agent.entry(rollout.mode)
    arguments, named = entry_arguments(entry, rollout, context)
    if agent.is_async_in(rollout.mode):
        return await entry(*arguments, **named)
    result = await in_thread(functools.partial(entry, *arguments, **named))
    return await result if inspect.isawaitable(result) else result


@contextmanager
def _rollout_span(rollout: Rollout) -> Iterator[None]:
    """Open one span around the agent's run, so that the spans of its framework form one tree."""
    if not capture.installed():
        yield
        return
    tracer = trace.get_tracer("agentlightning.runner")
    with tracer.start_as_current_span(ROLLOUT_SPAN, attributes={"agl.task_id": rollout.task_id or ""}):
        yield
