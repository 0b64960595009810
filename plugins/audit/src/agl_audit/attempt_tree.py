"""Build the tree of an attempt: its spans under their parents, model calls with their verdicts.

Invariant: every span of the attempt is in the tree exactly once, even if its parent is unknown or it is its
own ancestor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agentlightning import semconv
from agentlightning.capture.emit import BODY, INPUT, NAME, OUTPUT
from agentlightning.credit.verdicts import Verdict, verdicts
from agentlightning.store.pages import pages
from agentlightning.types import Attempt, Span
from agentlightning.types.base import Model
from agentlightning.types.failure import TRACEBACK
from agl_audit.run import OpenRun
from agl_audit.store.reward_versions import Rescored, RewardVersion, as_span, rescored
from agl_audit.store.trace import query_spans
from agl_audit.targets import Target

CALL_ID = "agl.call_id"
_PAGE = 10_000
"""Spans of one read."""
_AGENT_OPERATIONS = ("invoke_agent", "create_agent")


class SpanNode(Model):
    """A span in the tree."""

    kind: str
    """``call, tool, reward, agent, operation, message, exception, span``."""
    name: str
    span_id: str = ""
    milliseconds: float = 0.0
    status: str = "unset"
    error: str | None = None
    facts: dict[str, Any] = {}
    """By kind: a call's id, model, policy, version, tokens, verdict and answer; a tool's arguments and
    result; a reward's value, name and target."""
    children: list[SpanNode] = []


class AttemptTree(Model):
    """One attempt with its tree."""

    rollout: str
    attempt: str
    sequence: int
    status: str
    reason: str | None
    traceback: str | None
    """Traceback of the agent's exception, the agent's own line first."""
    seconds: float | None
    spans: int
    roots: list[SpanNode]
    resources: str | None = None
    """Its resources: id and version, ``rs-…@2``."""
    rewards: str | None = None
    """The version of its rewards, with the function's error if it gave none; ``None``: the original ones."""


async def attempt_trees(
    run: OpenRun, target: Target, every: bool = False, version: RewardVersion | None = None
) -> list[AttemptTree]:
    """Return the tree of the target's attempt (of a rollout, the latest), or of ``every`` attempt. With
    ``version``, the latest attempt has its rewards in place of the original ones.
    """
    rollout_id = target.rollout.rollout_id
    attempts = await run.store.query_attempts(rollout_id)
    if not every:
        wanted = target.attempt or (attempts[-1].attempt_id if attempts else None)
        attempts = [a for a in attempts if a.attempt_id == wanted]
    (record,) = await run.store.records([rollout_id])
    judged = verdicts(record)
    trees = []
    for attempt in attempts:
        found = pages(partial(query_spans, run.store), rollout_id, attempt.attempt_id, size=_PAGE)
        spans = [span async for page in found for span in page]
        if version is None or record.attempt is None or attempt.attempt_id != record.attempt.attempt_id:
            trees.append(_tree(attempt, spans, judged))
            continue
        (entry, *_) = [*await rescored(run.store, [rollout_id], version.name), None]
        tree = _tree(attempt, _with_rewards(spans, attempt, entry), judged)
        tree.rewards = f"{version.name}: {_entry_text(entry)}" if _entry_text(entry) else version.name
        trees.append(tree)
    return trees


def _with_rewards(spans: Sequence[Span], attempt: Attempt, entry: Rescored | None) -> list[Span]:
    """Return the spans with the rewards of an entry in place of theirs."""
    ended = attempt.end_time or 0.0
    given = [] if entry is None else entry.rewards
    made = [as_span(attempt.rollout_id, attempt.attempt_id, reward) for reward in given]
    for span in made:
        span.start_time = span.end_time = ended
    return [*(span for span in spans if span.name != semconv.REWARD_SPAN), *made]


def _entry_text(entry: Rescored | None) -> str:
    """Return why an entry has no reward; empty if it has."""
    if entry is None:
        return "not scored"
    return entry.error or ("" if entry.rewards else "no reward")


def _tree(attempt: Attempt, spans: Sequence[Span], judged: Mapping[str, Verdict]) -> AttemptTree:
    resources = attempt.resources_id
    if resources is not None and attempt.resources_version is not None:
        resources = f"{resources}@{attempt.resources_version}"
    return AttemptTree(
        rollout=attempt.rollout_id,
        attempt=attempt.attempt_id,
        sequence=attempt.sequence_id,
        status=str(attempt.status),
        reason=attempt.reason,
        traceback=attempt.metadata.get(TRACEBACK),
        seconds=attempt.end_time - attempt.start_time if attempt.end_time else None,
        spans=len(spans),
        roots=build_tree(spans, judged),
        resources=resources,
    )


def build_tree(spans: Sequence[Span], judged: Mapping[str, Verdict] | None = None) -> list[SpanNode]:
    """Return nodes under their parents, each level in order of start. ``judged``: call id → verdict."""
    ordered = sorted(spans, key=lambda span: (span.start_time, span.sequence_id))
    nodes = [(span, _node(span, judged or {})) for span in ordered]
    by_id = {span.span_id: node for span, node in reversed(nodes) if span.span_id}
    above: dict[int, SpanNode] = {}
    roots: list[SpanNode] = []
    for span, node in nodes:
        parent = by_id.get(span.parent_id or "")
        if parent is None or _under(parent, node, above):
            roots.append(node)
        else:
            parent.children.append(node)
            above[id(node)] = parent
    return roots


def _under(node: SpanNode, other: SpanNode, above: Mapping[int, SpanNode]) -> bool:
    """Whether ``node`` is ``other`` or below it."""
    at: SpanNode | None = node
    while at is not None and at is not other:
        at = above.get(id(at))
    return at is other


def _node(span: Span, judged: Mapping[str, Verdict]) -> SpanNode:
    kind, name, facts = _describe(span, judged)
    return SpanNode(
        kind=kind,
        name=name,
        span_id=span.span_id,
        milliseconds=round(max(0.0, 1000 * (span.end_time - span.start_time)), 1),
        status=span.status,
        error=_error(span),
        facts={key: value for key, value in facts.items() if value is not None},
    )


def _describe(span: Span, judged: Mapping[str, Verdict]) -> tuple[str, str, dict[str, Any]]:
    """Kind, name and facts of a span."""
    a = span.attributes
    operation = a.get(semconv.OPERATION_NAME)
    agent = a.get(semconv.AGENT_NAME)
    if CALL_ID in a or a.get(semconv.LAYER) == "wire":
        return "call", str(agent or a.get(semconv.TAG_PREFIX + "role") or "model"), _call(a, judged)
    if span.name == semconv.REWARD_SPAN:
        return "reward", str(a.get(semconv.REWARD_NAME, "reward")), _reward(a, span.returned)
    if operation == "execute_tool" or (operation is None and semconv.TOOL_NAME in a):
        facts = {"arguments": a.get(semconv.TOOL_CALL_ARGUMENTS), "result": a.get(semconv.TOOL_CALL_RESULT)}
        return "tool", str(a.get(semconv.TOOL_NAME) or span.name), {**facts, "agent": agent}
    if span.name == semconv.OPERATION_SPAN:
        facts = {"arguments": _plain(a.get(INPUT)), "result": _plain(a.get(OUTPUT))}
        return "operation", str(a.get(NAME, span.name)), facts
    if operation in _AGENT_OPERATIONS:
        return "agent", str(agent or span.name), {"operation": operation}
    if span.name == semconv.EXCEPTION_SPAN:
        return "exception", str(a.get(semconv.EXCEPTION_TYPE, "exception")), {}
    if span.name in (semconv.MESSAGE_SPAN, semconv.OBJECT_SPAN):
        return "message", span.name.rpartition(".")[2], {"body": _plain(a.get(BODY))}
    return "span", span.name, {"agent": agent}


def _call(a: Mapping[str, Any], judged: Mapping[str, Verdict]) -> dict[str, Any]:
    verdict = judged.get(str(a.get(CALL_ID)))
    tools = [
        f"{a[key]}({a.get(key.removesuffix('name') + 'arguments', '')})"
        for key in a
        if key.startswith("gen_ai.completion.0.tool_calls.") and key.endswith(".name")
    ]
    said = " ".join([str(a.get("gen_ai.completion.0.content") or ""), *tools]).strip() or _answer_text(a)
    return {
        "call": a.get(CALL_ID),
        "model": a.get(semconv.REQUEST_MODEL),
        "policy": a.get("agl.policy"),
        "version": a.get("agl.policy_version"),
        "tokens_in": a.get(semconv.INPUT_TOKENS),
        "tokens_out": a.get(semconv.OUTPUT_TOKENS),
        "verdict": verdict.kind if verdict else None,
        "verdict_reason": (verdict.reason or None) if verdict else None,
        "masked": a.get("agl.masked"),
        "selected": a.get(semconv.SELECTED),
        "answer": said or None,
    }


def _answer_text(a: Mapping[str, Any]) -> str:
    """The answer of a call without a gateway record."""
    parts = [part for m in json.loads(a.get(semconv.OUTPUT_MESSAGES) or "[]") for part in m["parts"]]
    return " ".join(str(p.get("content") or f"{p.get('name')}({p.get('arguments')})") for p in parts)


def _reward(a: Mapping[str, Any], returned: bool) -> dict[str, Any]:
    of = "rollout"
    if call := a.get(semconv.REWARD_CALL) or a.get(semconv.REWARD_SPAN_ID):
        of = f"call {call}"
    elif semconv.REWARD_AGENT in a:
        of = f"agent {a[semconv.REWARD_AGENT]}"
    final = a.get(semconv.REWARD_FINAL)
    return {"value": a.get(semconv.REWARD_VALUE), "of": of, "final": final, "returned": returned or None}


def _error(span: Span) -> str | None:
    """The error: the span's status, else an exception in its attributes or events."""
    if span.status == "error" or span.name == semconv.EXCEPTION_SPAN:
        return span.status_message or _exception(span.attributes) or "error"
    for event in span.events:
        if event.get("name") == "exception":
            return _exception(event.get("attributes") or {}) or "exception"
    return None


def _exception(a: Mapping[str, Any]) -> str:
    found = [str(a[key]) for key in (semconv.EXCEPTION_TYPE, semconv.EXCEPTION_MESSAGE) if a.get(key)]
    return ": ".join(found)


def _plain(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
