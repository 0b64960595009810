"""Traces made of spans: what the formats that hold spans have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentlightning import semconv
from agl_audit.history.importing.attributes import call_of
from agl_audit.history.importing.trace import ImportedTrace, number
from agl_audit.history.importing.values import flat, parsed

_INPUTS = ("input.value", "gen_ai.task.input", "agentops.entity.input", "traceloop.entity.input", "input")
_REWARDS = (
    (semconv.REWARD_VALUE, semconv.REWARD_NAME),
    ("agentlightning.reward.0.value", "agentlightning.reward.0.name"),
    ("gen_ai.evaluation.score.value", "gen_ai.evaluation.name"),
)
"""Attributes with the value and the name of a reward: ours, v0.3's, and those of GenAI evaluations."""


@dataclass(slots=True)
class ForeignSpan:
    """A span of any tool. Times are seconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start: float
    end: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


def traces_of(spans: Iterable[ForeignSpan]) -> list[ImportedTrace]:
    """Return the traces of spans: calls and rewards are spans of their own."""
    by_trace: dict[str, list[ForeignSpan]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    return [_trace(trace_id, of) for trace_id, of in by_trace.items()]


def _trace(trace_id: str, spans: list[ForeignSpan]) -> ImportedTrace:
    known = {span.span_id for span in spans}
    found = ImportedTrace(trace_id)
    for span in sorted(spans, key=lambda span: span.start):
        root = span.parent_id is None or span.parent_id not in known
        call = call_of(span.attributes)
        if root:
            if found.task is None and call is None:
                found.task = _input(span.attributes)
            found.error = found.error or span.error
        if call is not None:
            call.start, call.end, call.error = span.start, span.end, span.error
            call.answer = None if span.error and call.answer is None else call.answer
            found.calls.append(call)
        elif (reward := reward_of(span)) is not None:
            found.rewards.append(reward)
        elif not root:
            found.left_out["span-without-messages"] += 1
    return found.finished()


def _input(attributes: Mapping[str, Any]) -> Any:
    known = flat(attributes)
    return next((parsed(known[name]) for name in _INPUTS if known.get(name) not in (None, "")), None)


def reward_of(span: ForeignSpan) -> tuple[str, float] | None:
    """Return name and value of a reward: a span of ours or of v0.3 (also by AgentOps), or an evaluation."""
    known = flat(span.attributes)
    for value, name in _REWARDS:
        if (found := number(known.get(value))) is not None:
            return str(known.get(name) or "reward"), found
    told = parsed(known.get("agentops.entity.output") or known.get("agentops.task.output"))
    if isinstance(told, Mapping) and told.get("type") == "reward":
        found = number(told.get("value"))
    elif span.name == semconv.REWARD_SPAN:
        found = number(known.get("reward"))
    else:
        found = None
    return None if found is None else ("reward", found)
