"""Runs the agent on one attempt, under the attempt's identity, in a runner or in a worker process.

An error that the agent raises becomes its outcome. ``sys.exit()`` ends only the attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace

from agentlightning import capture
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.runner.agent.hosted import HostedAgent
from agentlightning.runner.outcomes.outcome import Outcome, outcome_of_error
from agentlightning.semconv import ROLLOUT_SPAN
from agentlightning.types import Rollout
from agentlightning.webserver.proxies import go_direct


async def execute(
    agent: HostedAgent, rollout: Rollout, context: AttemptContext, counts: Counter[str]
) -> Outcome:
    """Run the agent and return how the attempt ended. ``counts``: :attr:`.Runner.counts`. Cancellation and
    ``KeyboardInterrupt`` are raised.
    """
    go_direct(context.gateway)  # here, since this is the process in which the agent makes its clients
    with attempt_context(context), _rollout_span(rollout):
        try:
            return await agent.attempt(rollout, context, counts)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as raised:  # any other error ends this attempt and not the run
            return outcome_of_error(next(iter(context.errors), raised))


@contextmanager
def _rollout_span(rollout: Rollout) -> Iterator[None]:
    """Open one span around the agent's run, so that the spans of its framework form one tree."""
    if not capture.installed():
        yield
        return
    tracer = trace.get_tracer("agentlightning.runner")
    with tracer.start_as_current_span(ROLLOUT_SPAN, attributes={"agl.task_id": rollout.task_id or ""}):
        yield
