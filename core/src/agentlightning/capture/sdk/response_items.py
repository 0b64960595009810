"""Answers of the Responses and Messages APIs: one choice, made of items or blocks.

The sampled tokens are fields of the answer itself (``token_ids``, ``token_logprobs``), as the gateway sends
them. Invariant: events of a stream add up to what the whole answer would have said.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentlightning.capture.sdk.response import ResponseChoice


def response_in(event: Any) -> Any:
    """The answer inside a stream's event; the event itself if there is none."""
    return getattr(event, "response", None) or getattr(event, "message", None) or event


def has_one_choice(answer: Any) -> bool:
    """Whether it is a ``response`` or a ``message``, which have no list of choices."""
    return getattr(answer, "object", None) == "response" or getattr(answer, "type", None) == "message"


def add_single(choice: ResponseChoice, answer: Any) -> None:
    """Add a whole answer, or the state of one that begins or ends in a stream."""
    if (ids := getattr(answer, "token_ids", None)) is not None:
        choice.ids = list(ids)
    if (logprobs := getattr(answer, "token_logprobs", None)) is not None:
        choice.logprobs = list(logprobs)
    status = getattr(answer, "status", None)
    choice.finish_reason = getattr(answer, "stop_reason", None) or (
        status if status not in (None, "in_progress", "queued") else choice.finish_reason
    )
    for item in getattr(answer, "output", None) or getattr(answer, "content", None) or ():
        _add_item(choice, item)


def add_event(choice: ResponseChoice, event: Any) -> None:
    """Add an event between the first and the last of a message's stream."""
    delta: Any = getattr(event, "delta", None)
    block: Any = getattr(event, "content_block", None)
    if block is not None and getattr(block, "type", None) == "tool_use":
        choice.tool_calls[event.index] = {"id": block.id, "name": block.name, "arguments": ""}
    choice.finish_reason = getattr(delta, "stop_reason", None) or choice.finish_reason
    if getattr(delta, "type", None) == "text_delta":
        choice.content += delta.text
    elif getattr(delta, "type", None) == "input_json_delta" and event.index in choice.tool_calls:
        choice.tool_calls[event.index]["arguments"] += delta.partial_json


def _add_item(choice: ResponseChoice, item: Any) -> None:
    kind, place = getattr(item, "type", None), len(choice.tool_calls)
    if kind == "text":
        choice.content += item.text
    elif kind == "message":
        choice.content += "".join(getattr(part, "text", "") for part in item.content)
    elif kind == "tool_use":
        written = json.dumps(item.input, ensure_ascii=False)
        choice.tool_calls[place] = {"id": item.id, "name": item.name, "arguments": written}
    elif kind == "function_call":
        choice.tool_calls[place] = {"id": item.call_id, "name": item.name, "arguments": item.arguments}
