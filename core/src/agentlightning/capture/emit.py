"""Record an agent's own statements about its work: rewards, objects, annotations, and those of plugins.

Each emitter makes one span of the current attempt, in any thread or task, and returns it. Its parent is the
current OpenTelemetry span. With ``propagate=False`` the span is returned and not recorded. Invariant: a
reward is a finite number; a *missing* reward is not emitted, and never NaN. Emitting outside
an attempt is an error, or does nothing under ``AGL_EMIT_OUTSIDE=ignore``.

:func:`recorded_operation` records a part of the work. :func:`find_final_reward` and the functions beside it
read rewards back from spans.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, attached, current_attempt
from agentlightning.capture.delivery import COUNTS, attempt_ended, deliver, new_span, span_of_response
from agentlightning.capture.identity import RemoteParentSpan, framework_tags, parent_ids
from agentlightning.capture.records import (
    BadRecord,
    check_span,
    checked_mapping,
    describe_error,
    is_instance,
    jsonable,
    reward_number,
    short_repr,
)
from agentlightning.types import Span
from agentlightning.types.record import (
    by_precedence,
    effective_reward,
    is_rollout_reward,
    reward_of,
)

BODY = "agl.body"
"""Attribute with the content of a message or object span."""


def emit_reward(
    value: float | Mapping[str, float],
    *,
    name: str = "reward",
    primary_key: str | None = None,
    call: Any = None,
    agent: str | None = None,
    final: bool | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> Span:
    """Attach a number to the rollout, to one model call, or to an agent's calls.

    ``call``: a call id, a response id, or the openai response object. ``final``: whether it is the reward of
    the rollout; by default it is, unless ``call`` or ``agent`` narrows it. A mapping needs ``primary_key``,
    the entry that is trained on. Raise ValueError when a number is not finite or not between -2**53 and
    2**53, and when a name, an agent or an attribute is invalid; the message says which.
    """
    whole = (call is None and agent is None) if final is None else final
    reward = {**reward_attributes(value, name, primary_key, final=whole), semconv.REWARD_AGENT: agent}
    return emit_span(semconv.REWARD_SPAN, reward, attributes, call=call, propagate=propagate)


def returned_reward_span(value: float) -> Span:
    """Make the span of the reward that the agent returned. The runner writes it to the store itself: nothing
    is delivered here.
    """
    return _span(semconv.REWARD_SPAN, reward_attributes(value, final=True))


def reward_attributes(
    value: float | Mapping[str, float], name: str = "reward", primary_key: str | None = None, *, final: bool
) -> dict[str, Any]:
    """Return the attributes of a reward's span. Arguments and errors: as for :func:`emit_reward`."""
    dimensions = None
    if is_instance(value, Mapping):
        dimensions = {
            key: reward_number(number, f"reward {short_repr(name)}[{key!r}]")
            for key, number in checked_mapping(value, "reward").items()
        }
        if not isinstance(primary_key, str) or primary_key not in dimensions:
            raise ValueError(
                f"a reward with several dimensions needs primary_key, one of {sorted(dimensions)}; "
                f"got {short_repr(primary_key)}"
            )
        trained = dimensions[primary_key]
    else:
        trained = reward_number(value, f"reward {name if is_instance(name, str) else short_repr(name)}")
    return {
        semconv.REWARD_VALUE: trained,
        semconv.REWARD_NAME: name,
        semconv.EVALUATION_NAME: name,
        semconv.EVALUATION_SCORE: trained,
        semconv.REWARD_FINAL: final,
        semconv.REWARD_DIMENSIONS: dimensions,
    }


def emit_object(value: Any, *, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> Span:
    """Record a value as JSON. A value without a JSON form becomes text and is counted."""
    return emit_span(semconv.OBJECT_SPAN, {BODY: value}, attributes, propagate=propagate)


def emit_annotation(
    annotation: Mapping[str, Any], *, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> Span:
    """Record facts, each as an attribute of its own."""
    about = checked_mapping(annotation, "annotation")
    return emit_span(semconv.ANNOTATION_SPAN, about, attributes, propagate=propagate)


def emit_span(
    kind: str,
    about: Mapping[str, Any],
    attributes: Mapping[str, Any] | None,
    *,
    call: Any = None,
    error: str | None = None,
    propagate: bool = True,
) -> Span:
    """Make a span of the current attempt and deliver it. ``attributes``: the user's own. ``propagate=False``:
    make it, and deliver nothing.
    """
    context = current_attempt()
    given = checked_mapping(attributes, "attributes")
    span = _span(kind, {**about, **given, **_call_link(context, call)}, error)
    if not propagate:
        return span
    if context is not None and not attempt_ended(context.attempt_id):
        deliver(context, span)
        return span
    COUNTS.add("emit-outside-attempt" if context is None else "late-span")
    if os.environ.get("AGL_EMIT_OUTSIDE") != "ignore":
        why = "there is no current attempt" if context is None else f"attempt {context.attempt_id} has ended"
        raise RuntimeError(
            f"{kind} was emitted where {why}: emit inside a rollout, or in a task or thread that was started "
            "there after agentlightning.capture.install(); or set AGL_EMIT_OUTSIDE=ignore"
        )
    return span


def _span(kind: str, attributes: Mapping[str, Any], error: str | None = None) -> Span:
    """Make a span of the current attempt, below the current span."""
    context = current_attempt() or AttemptContext("", "", sink=lambda span: None)
    named = {semconv.AGENT_NAME: framework_tags().get("agent"), **attributes}
    span = new_span(context, kind, parent_ids(context.attempt_id), named, error=error)
    span.attributes = jsonable(span.attributes)
    try:
        check_span(span)
    except BadRecord as bad:
        COUNTS.add("bad-record")
        raise BadRecord(f"{kind} was not emitted: {bad}", bad.kind) from None
    return span


def _call_link(context: AttemptContext | None, call: Any) -> dict[str, str]:
    """Return the attributes by which a reward names its call: response id and call span if this process
    recorded the call, else the call id.
    """
    if call is None:
        return {}
    try:
        given = call if isinstance(call, str) else getattr(call, "id", None)
    except Exception:  # an object with such an attribute is no response
        given = None
    if not isinstance(given, str) or not given:
        raise ValueError(
            f"call={short_repr(call)} names no model call: give a call id, a response id, or the "
            "response object"
        )
    span_id = span_of_response(context.attempt_id, given) if context else None
    if span_id is not None:
        return {semconv.REWARD_SPAN_ID: span_id, semconv.RESPONSE_ID: given}
    return {semconv.REWARD_CALL: given} if is_instance(call, str) else {semconv.RESPONSE_ID: given}


NAME = "agl.operation.name"
INPUT = "agl.operation.input"
OUTPUT = "agl.operation.output"


@contextmanager
def recorded_operation(name: str, about: dict[str, Any]) -> Iterator[None]:
    """Deliver a span for the block, a part of the work, and make it the current OpenTelemetry span within, so
    that it is the parent of the calls and tools there. ``about``: read at the end, its :data:`INPUT` and
    :data:`OUTPUT`. Outside an attempt the block runs without a span, and is counted.
    """
    if (context := current_attempt()) is None:
        COUNTS.add("emit-outside-attempt")
        yield
        return
    parent, agent = parent_ids(context.attempt_id), framework_tags().get("agent")
    number, start, failed = secrets.randbits(64) or 1, time.time(), None
    try:
        with attached(trace.set_span_in_context(RemoteParentSpan(int(parent[0], 16), number, agent))):
            yield
    except BaseException as error:
        failed = describe_error(error)
        raise
    finally:
        known, span_id = {NAME: name, **about, semconv.AGENT_NAME: agent}, f"{number:016x}"
        span = new_span(
            context, semconv.OPERATION_SPAN, parent, known, span_id=span_id, start=start, error=failed
        )
        span.attributes = jsonable(span.attributes)
        deliver(context, span)


def get_reward_value(span: Span) -> float | None:
    """Return the number of a reward span; ``None`` for other spans."""
    reward = reward_of(span)
    return reward.value if reward is not None and math.isfinite(reward.value) else None


def find_reward_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that carry a reward, in their order."""
    return [span for span in spans if get_reward_value(span) is not None]


def find_final_reward(spans: Iterable[Span]) -> float | None:
    """Return the reward of the rollout, by the rule that training follows; ``None`` if there is none.

    A reward named ``reward`` comes before others, and a returned reward before an emitted one; of equal
    rewards the last in the list counts.
    """
    read = (reward_of(span) for span in by_precedence(find_reward_spans(spans)))
    whole = [reward for reward in read if reward is not None and is_rollout_reward(reward)]
    return effective_reward(whole).value if whole else None
