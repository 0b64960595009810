"""What agents of Agent Lightning 0.1 to 0.3 expect around a rollout: the arguments of their methods, the
trainer, the runner and the tracer, and what they return.

A class of 0.1 takes ``(task, rollout_id, resources)``; one of 0.2 and 0.3 takes ``(task, resources,
rollout)``, where the rollout has its ``attempt``. The endpoint that verl's daemon called ``main_llm`` is the
run's ``llm``.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from opentelemetry.sdk.trace import ReadableSpan

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.emit import emit_reward, find_final_reward
from agentlightning.capture.records import convert
from agentlightning.capture.sdk_call import CALL_ID
from agentlightning.decorator.agents import FunctionAgent, RunnableAgent
from agentlightning.types import LLM, Attempt, AttemptStatus, Model, Resource, Rollout, Span
from agl_v03.stores.v03_store import RolloutWithAttempt
from agl_v03.triplet import Triplet

MAIN: Final = "main_llm"
HOOKS: Final = {
    "on_rollout_start": ("task", "runner", "tracer"),
    "on_rollout_end": ("task", "rollout", "runner", "tracer"),
}
"""Hook of an agent's class → the parameters that it had. Its ``task`` was the whole rollout, and ``rollout``
what the runner reported.
"""


_OF_THE_GATEWAY: Final = {
    CALL_ID,
    semconv.INPUT_MESSAGES,
    semconv.OUTPUT_MESSAGES,
    semconv.PROMPT_IDS,
    semconv.RESPONSE_IDS,
    semconv.LOGPROBS,
}
"""Attributes of a call's span that are not delivered where a gateway records the call."""


class RolloutLegacy(Model):
    """What a runner of 0.1 reported, and what an agent may return: a reward, or transitions, or both."""

    rollout_id: str
    final_reward: float | None = None
    triplets: list[Triplet] | None = None
    trace: list[dict[str, Any]] | None = None
    logs: list[str] | None = None
    metadata: dict[str, Any] = {}


class Surroundings:
    """What runs an attempt, for an agent that asks its ``trainer``, ``runner`` or ``tracer``.

    ``spans``: the attempt's spans that have ended in this process. Those of calls hold the token ids, which
    else only the gateway keeps.
    """

    def __init__(self, trainer: Any, runner: Any, tracer: Any) -> None:
        self.trainer, self.runner = trainer, runner
        self.spans: list[Span] = []
        self._tracer = tracer

    @property
    def tracer(self) -> Any:
        """The tracer, whose last trace is this attempt's."""
        if self._tracer is None:
            from agl_v03.tracer import OtelTracer

            self._tracer = OtelTracer()
        return self._tracer.of_spans(self.spans)

    def add(self, span: Span) -> Span:
        """Take a span, and return it without what only the gateway keeps of a call."""
        self.spans.append(span)
        if CALL_ID not in span.attributes:
            return span
        kept = {name: value for name, value in span.attributes.items() if name not in _OF_THE_GATEWAY}
        if not span.attributes[CALL_ID]:
            del span.attributes[CALL_ID]
        return msgspec.structs.replace(span, attributes=kept)


def reads_its_trace(agent: RunnableAgent) -> bool:
    """Return whether the agent is of a user's class, which may ask for its tracer."""
    return not type(agent).__module__.startswith(("agentlightning.", "agl_v03."))


def entry_arguments(
    entry: Callable[..., Any], rollout: Rollout, context: AttemptContext
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an agent's method, by position and by name."""
    if isinstance(getattr(entry, "__self__", None), FunctionAgent):
        return (rollout.input, context.resources, rollout), {}
    resources = former_resources(context.resources, greedy=bool(rollout.metadata.get("greedy")))
    names = inspect.signature(entry).parameters
    if "rollout_id" not in names:
        return (rollout.input, resources, attempted(rollout, context.attempt_id)), {}
    if "resources" in names:
        return (rollout.input,), {"rollout_id": rollout.rollout_id, "resources": resources}
    return (rollout.input, rollout.rollout_id, resources), {}


def former_resources(resources: Mapping[str, Resource], *, greedy: bool) -> dict[str, Resource]:
    """Return the resources with ``main_llm``, and with a temperature for each endpoint of the run. The
    gateway sets the run's own temperature in training and 0 where ``greedy``.
    """
    given = dict(resources)
    if MAIN not in given and isinstance(main := given.get("llm"), LLM):
        given[MAIN] = main
    asked = {"temperature": 0.0 if greedy else 1.0}
    return {
        name: msgspec.structs.replace(one, sampling_parameters={**asked, **one.sampling_parameters})
        if isinstance(one, LLM)
        else one
        for name, one in given.items()
    }


def attempted(rollout: Rollout, attempt_id: str) -> RolloutWithAttempt:
    """Return the rollout with its running attempt."""
    attempt = Attempt(
        attempt_id=attempt_id,
        rollout_id=rollout.rollout_id,
        sequence_id=rollout.attempts,
        status=AttemptStatus.RUNNING,
        start_time=time.time(),
        resources_id=rollout.resources_id,
        resources_version=rollout.resources_version,
    )
    fields = {name: getattr(rollout, name) for name in Rollout.__struct_fields__}
    return RolloutWithAttempt(**fields, attempt=attempt)


def hook_arguments(hook: str, method: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of an agent's hook with the parameters of 0.1 to 0.3; ``None`` for any other."""
    names = tuple(inspect.signature(method).parameters)
    if names != HOOKS.get(hook):
        return None
    task, spans = known["rollout"], known["spans"]
    known = {**known, "task": task, "rollout": _reported(task, known["result"], spans)}
    return {name: known[name] for name in names}


def _reported(rollout: Rollout, result: Any, spans: Sequence[Span]) -> RolloutLegacy:
    """Return the report of an attempt that has ended."""
    if isinstance(result, RolloutLegacy):
        return result
    triplets = [one for one in result if isinstance(one, Triplet)] if isinstance(result, list) else None
    number = isinstance(result, int | float)
    final = float(result) if number else find_final_reward(spans)
    return RolloutLegacy(rollout_id=rollout.rollout_id, final_reward=final, triplets=triplets)


def former_result(result: Any, context: AttemptContext, known: Sequence[Span]) -> Any:
    """Return a result as the runner reads it: of a :class:`RolloutLegacy` its transitions, or its reward; of
    OpenTelemetry's spans those that are not recorded already (``known``).
    """
    if isinstance(result, RolloutLegacy):
        if result.triplets and result.final_reward is not None:
            emit_reward(result.final_reward)
        return result.triplets or result.final_reward
    if isinstance(result, list) and result and all(isinstance(one, ReadableSpan) for one in result):
        recorded = {span.span_id for span in known}
        return [span for one in result if (span := convert(one, context)).span_id not in recorded]
    return result
