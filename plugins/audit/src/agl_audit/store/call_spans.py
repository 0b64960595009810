"""Model calls as spans named ``openai.chat.completion``, merged with the spans of the wire layer.

A call and the wire span of the same ``span_id`` become one span, in the call's place. A choice beyond the
first, or a request that the SDK sent again, gets a span of its own. Attributes follow OpenTelemetry's GenAI
conventions, with the legacy ``gen_ai.prompt.N.*`` and ``gen_ai.completion.N.*`` beside them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentlightning import semconv
from agentlightning.store import codec
from agentlightning.types import Call, Span
from agentlightning.types.record import tool_calls_of

_SAMPLING = (
    *("temperature", "top_p", "top_k", "seed", "max_tokens", "frequency_penalty", "presence_penalty"),
    *("n", "stop"),
)


def merge_calls(spans: Sequence[Span], calls: Iterable[tuple[Call, int]]) -> list[Span]:
    """Merge the spans and calls of a rollout in order of arrival; each call comes with its sequence id."""
    wire = {
        (s.attempt_id, s.span_id): s for s in spans if s.span_id and s.attributes.get(semconv.LAYER) == "wire"
    }
    placed = list(calls)
    primary: dict[tuple[str, str], Call] = {}
    for call, _ in placed:
        if call.span_id:
            key = (call.attempt_id, call.span_id)
            primary[key] = max(primary.get(key, call), call, key=lambda c: (c.retry, -c.choice))
    attempts = [span.attempt_id for span in spans] + [call.attempt_id for call, _ in placed]
    order = {attempt: place for place, attempt in enumerate(dict.fromkeys(attempts))}
    out: list[Span] = []
    for call, arrival in placed:
        key = (call.attempt_id, call.span_id or "")
        is_primary = primary.get(key) is call
        out.append(call_span(call, arrival, wire.get(key), is_primary))
    merged = {id(span) for key, span in wire.items() if key in primary}
    out.extend(span for span in spans if id(span) not in merged)
    out.sort(key=lambda s: (order[s.attempt_id], s.sequence_id))
    return out


def call_span(call: Call, arrival: int, wire: Span | None, is_primary: bool) -> Span:
    """Convert a call to a span. ``is_primary``: merge the wire span of the same id into it."""
    merged = wire if is_primary and wire is not None else None
    return Span(
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        name=semconv.CALL_SPAN,
        trace_id=call.trace_id or (wire.trace_id if wire else ""),
        span_id=call.span_id
        if is_primary and call.span_id
        else hashlib.sha256(call.call_id.encode()).hexdigest()[:16],
        parent_id=wire.parent_id if wire else None,
        sequence_id=arrival,
        kind="client",
        status="ok" if call.status == "ok" else "error",
        status_message=call.error,
        attributes={**(merged.attributes if merged else {}), **attributes(call)},
        events=merged.events if merged else [],
        links=merged.links if merged else [],
        resource=merged.resource if merged else {},
        start_time=call.start_time,
        end_time=call.end_time,
    )


def attributes(call: Call) -> dict[str, Any]:
    """Return the attributes of a call span, without unknown values."""
    response = call.response or {}
    out: dict[str, Any] = {
        semconv.OPERATION_NAME: "chat" if call.api == "chat" else "text_completion",
        semconv.REQUEST_MODEL: call.model,
        semconv.RESPONSE_MODEL: response.get("model") or call.model,
        semconv.RESPONSE_ID: call.response_id,
        semconv.FINISH_REASONS: [call.finish_reason] if call.finish_reason else None,
        semconv.INPUT_TOKENS: codec.token_count(call.prompt_tokens, call.prompt_ids),
        semconv.OUTPUT_TOKENS: codec.token_count(call.completion_tokens, call.response_ids),
        "agl.call_id": call.call_id,
        "agl.policy": call.policy,
        "agl.policy_version": call.policy_version,
        "agl.masked": call.masked,
        semconv.SELECTED: None if call.selected else False,
        semconv.CHOICE: call.choice,
        semconv.AGENT_NAME: call.tags.get("agent"),
    }
    out.update((f"gen_ai.request.{k}", call.sampling[k]) for k in _SAMPLING if k in call.sampling)
    if tools := (call.request or {}).get("tools"):
        out[semconv.TOOL_DEFINITIONS] = json.dumps(tools, ensure_ascii=False)
    out.update(_messages("gen_ai.prompt", _prompt(call)))
    out.update(_messages("gen_ai.completion", [_completion(call, response)] if response else []))
    out.update(_tokens(call))
    out.update((semconv.TAG_PREFIX + k, v) for k, v in call.tags.items())
    return {k: v for k, v in out.items() if v is not None}


def _tokens(call: Call) -> Iterable[tuple[str, Any]]:
    for name, data, count in (
        (semconv.PROMPT_IDS, codec.pack_ids(call.prompt_ids), semconv.PROMPT_COUNT),
        (semconv.RESPONSE_IDS, codec.pack_ids(call.response_ids), semconv.RESPONSE_COUNT),
        (semconv.LOGPROBS, codec.pack_floats(call.logprobs), None),
    ):
        if data is not None:
            yield name, base64.b64encode(data).decode()
            if count:
                yield count, len(data) // 4


def _prompt(call: Call) -> list[dict[str, Any]]:
    request = call.request or {}
    messages = request.get("messages")
    if isinstance(messages, list):
        return [m for m in messages if isinstance(m, dict)]
    prompt = request.get("prompt")
    return [] if prompt is None else [{"role": "user", "content": prompt}]


def _completion(call: Call, response: dict[str, Any]) -> dict[str, Any]:
    content = response.get("content", response.get("text"))
    return {"role": "assistant", **response, "content": content, "finish_reason": call.finish_reason}


def _messages(prefix: str, messages: Sequence[dict[str, Any]]) -> Iterable[tuple[str, Any]]:
    for n, message in enumerate(messages):
        at = f"{prefix}.{n}"
        for key in ("role", "content", "finish_reason", "tool_call_id", "name"):
            if (value := message.get(key)) is not None:
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                yield f"{at}.{key}", text
        for m, tool in enumerate(tool_calls_of(message)):
            function = tool.get("function")
            function = function if isinstance(function, Mapping) else {}
            parts = {"id": tool.get("id"), **{key: function.get(key) for key in ("name", "arguments")}}
            for key, value in parts.items():
                if value is not None:
                    yield f"{at}.tool_calls.{m}.{key}", value
