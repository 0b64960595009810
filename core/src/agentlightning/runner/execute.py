"""Runs the agent on one attempt, under the attempt's identity; the same in a runner and in a worker process.

An error of the agent's is its outcome; ``sys.exit()`` ends only the attempt.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace

from agentlightning import capture
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.emit.emitters import returned_reward_span
from agentlightning.capture.emit.validation import BadRecord
from agentlightning.capture.spans.convert import error_text
from agentlightning.decorator.agents import LitAgent
from agentlightning.runner.event_loops.threads import in_thread
from agentlightning.runner.hooks import HookCalls
from agentlightning.runner.outcomes.outcome import Outcome, outcome_of_error, outcome_of_return
from agentlightning.runner.outcomes.returned import read_supplied
from agentlightning.semconv import REWARD_SPAN, ROLLOUT_SPAN
from agentlightning.types import AttemptStatus, Resource, Rollout, Span, Triplet


@dataclass(slots=True)
class AttemptResult:
    """How an agent's run ended, and the transitions it handed in."""

    outcome: Outcome
    triplets: list[Triplet] = field(default_factory=list)
    returned: list[Span] = field(default_factory=list)
    """Spans of the rewards that it returned. The store keeps them apart from emitted ones."""


async def execute(
    agent: LitAgent[Any], rollout: Rollout, context: AttemptContext, counts: Counter[str]
) -> AttemptResult:
    """Run the agent on the rollout. ``counts``: of ``end-hook-failed``."""
    result: Any = None
    error: BaseException | None = None
    hook_calls = HookCalls(agent, rollout, context, counts)
    with attempt_context(hook_calls.context), _rollout_span(rollout):
        try:
            await hook_calls.start()
            result = await _call(agent, rollout, context.resources)
            if context.errors:
                raise context.errors[0]
            ended = read_return(result, context)
            if ended.outcome.reward is not None:
                ended.returned.append(hook_calls.add_span(returned_reward_span(ended.outcome.reward)))
        except (asyncio.CancelledError, KeyboardInterrupt) as raised:
            error = raised
            raise
        except BaseException as raised:  # any other ends this attempt and not the run
            error, ended = raised, AttemptResult(outcome_of_error(next(iter(context.errors), raised)))
        finally:
            await hook_calls.end(result, error)
    return ended


def read_return(result: Any, context: AttemptContext) -> AttemptResult:
    """Read a returned value: a number, ``None``, or a list of the agent's own transitions."""
    try:
        supplied = read_supplied(result, context.rollout_id, context.attempt_id)
        if supplied is None:
            return AttemptResult(outcome_of_return(result))
        triplets, spans = supplied
        rewards = [span for span in spans if span.name == REWARD_SPAN]
        others = [span for span in spans if span.name != REWARD_SPAN]
        return AttemptResult(outcome_of_return(others), triplets, rewards)
    except BadRecord as bad:
        return AttemptResult(Outcome(AttemptStatus.FAILED, bad.reason))
    except Exception as error:  # the agent's own classes may raise anything while they are read
        unread = BadRecord(f"the returned {type(result).__name__} cannot be read: {error_text(error)}")
        return AttemptResult(Outcome(AttemptStatus.FAILED, unread.reason))


async def _call(agent: LitAgent[Any], rollout: Rollout, resources: dict[str, Resource]) -> Any:
    entry: Callable[..., Any] = agent.entry(rollout.mode)
    if agent.is_async_in(rollout.mode):
        return await entry(rollout.input, resources, rollout)
    result = await in_thread(entry, rollout.input, resources, rollout)
    return await result if inspect.isawaitable(result) else result


@contextmanager
def _rollout_span(rollout: Rollout) -> Iterator[None]:
    """One span around the agent's run, so that the spans of its framework form one tree."""
    if not capture.installed():
        yield
        return
    tracer = trace.get_tracer("agentlightning.runner")
    with tracer.start_as_current_span(ROLLOUT_SPAN, attributes={"agl.task_id": rollout.task_id or ""}):
        yield
