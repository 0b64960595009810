"""Translate rewards in the formats of Agent Lightning 0.2 and 0.3 and of AgentOps' operations to ours.

They arrive as OpenTelemetry spans. Core has each span that comes in translated once (hook
``agl_reward_formats``), so that readers of rewards know one format.

- 0.3: attributes ``agentlightning.reward.<n>.name`` and ``.value`` of an annotation or of an operation; the
  first reward is trained on. ``agentlightning.link.<n>.…`` names the reward's response.
- 0.2: a span ``agentlightning.reward`` with the attribute ``reward``.
- AgentOps: an operation's output, ``{"type": "reward", "value": …}`` as JSON, which 0.1 and 0.2 wrote.

Invariant: a span without such a reward stays as it is.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from agentlightning import semconv
from agentlightning.types import Span

READ_FROM: Final = "agl.reward.read_from"
"""The span's original name."""
_ANNOTATIONS: Final = (semconv.ANNOTATION_SPAN, semconv.OPERATION_SPAN)
_PART: Final = re.compile(r"agentlightning\.reward\.(\d{1,4})\.(name|value)")
_LINK: Final = re.compile(r"agentlightning\.link\.(\d{1,4})\.(key_match|value_match)")
_OUTPUTS: Final = ("agentops.task.output", "agentops.entity.output")


def as_reward_span(span: Span) -> Span:
    """Return ``span``; if it is a reward of another format, as a reward of ours."""
    if semconv.REWARD_VALUE in span.attributes or not (found := _reward_values(span)):
        return span
    (_, value), *_ = found
    given: dict[str, Any] = {
        **span.attributes,
        semconv.REWARD_VALUE: value,
        semconv.REWARD_NAME: "reward",
        semconv.REWARD_FINAL: True,
        READ_FROM: span.name,
        **_linked_call(span),
    }
    if len(found) > 1:
        given[semconv.REWARD_DIMENSIONS] = dict(found)
    return msgspec.structs.replace(span, name=semconv.REWARD_SPAN, attributes=given)


def _reward_values(span: Span) -> list[tuple[str, Any]]:
    """Return names and values of the rewards of another format in a span, the trained one first."""
    a = span.attributes
    if span.name == semconv.REWARD_SPAN:
        return [("reward", a["reward"])] if "reward" in a else []
    if span.name in _ANNOTATIONS:
        parts = _numbered(a, _PART)
        return [(str(part.get("name", n)), part["value"]) for n, part in parts if "value" in part]
    return [("reward", value) for name in _OUTPUTS if (value := _of_output(a.get(name))) is not None][:1]


def _of_output(output: Any) -> Any:
    """Return the reward in an operation's output; ``None`` if there is none."""
    if isinstance(output, str) and '"reward"' in output and len(output) < 10_000:
        try:
            output = json.loads(output)
        except (ValueError, RecursionError):
            return None
    return output.get("value") if isinstance(output, dict) and output.get("type") == "reward" else None


def _linked_call(span: Span) -> dict[str, Any]:
    """Return the attributes that name the call of a linked response."""
    # It loads OpenTelemetry's API, and every command loads this module.
    from agentlightning.capture.delivery import span_of_response

    for _, link in _numbered(span.attributes, _LINK):
        if link.get("key_match") == semconv.RESPONSE_ID and isinstance(to := link.get("value_match"), str):
            at = span_of_response(span.attempt_id, to)
            where = {semconv.REWARD_CALL: to} if at is None else {semconv.REWARD_SPAN_ID: at}
            return {semconv.REWARD_FINAL: False, **where}
    return {}


def _numbered(attributes: dict[str, Any], form: re.Pattern[str]) -> list[tuple[int, dict[str, Any]]]:
    """Group attributes ``….<n>.<field>`` by their number, in ascending order."""
    parts: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        if isinstance(name, str) and (match := form.fullmatch(name)):
            parts.setdefault(int(match[1]), {})[match[2]] = value
    return sorted(parts.items())
