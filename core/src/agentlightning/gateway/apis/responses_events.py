"""A whole answer of the Responses API as the typed events of its stream.

Invariant: what the SDK accumulates of the events is the answer; the closing event holds it whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentlightning.gateway.apis.base import TOKEN_FIELDS, typed_event
from agentlightning.gateway.apis.chat import cut

Event = dict[str, Any]


def response_events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """From ``response.created`` to ``response.completed`` or ``response.incomplete``, numbered."""
    for number, event in enumerate(_events(answer)):
        yield typed_event({**event, "sequence_number": number})


def _events(answer: Mapping[str, Any]) -> Iterator[Event]:
    begun = {name: value for name, value in answer.items() if name not in TOKEN_FIELDS}
    begun |= {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, item in enumerate(answer["output"]):
        yield from _item(item, {"output_index": place})
    yield {"type": f"response.{answer['status']}", "response": answer}


def _item(item: Mapping[str, Any], at: Event) -> Iterator[Event]:
    whose = {**at, "item_id": item["id"]}
    calls = item["type"] == "function_call"
    empty: Event = {"arguments": ""} if calls else {"content": []}
    yield {"type": "response.output_item.added", **at, "item": {**item, "status": "in_progress", **empty}}
    if calls:
        for piece in cut(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **whose, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **whose, **done}
    else:
        for place, part in enumerate(item["content"]):
            yield from _part(part, {**whose, "content_index": place})
    yield {"type": "response.output_item.done", **at, "item": item}


_KINDS = {
    "output_text": ("text", "response.output_text"),
    "reasoning_text": ("text", "response.reasoning_text"),
    "refusal": ("refusal", "response.refusal"),
}


def _part(part: Mapping[str, Any], at: Event) -> Iterator[Event]:
    field, name = _KINDS[part["type"]]
    more: Event = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **at, "part": {**part, field: "", **more}}
    for piece in cut(part[field]):
        yield {"type": f"{name}.delta", **at, "delta": piece, **more}
    more = {"logprobs": part["logprobs"]} if more else {}
    yield {"type": f"{name}.done", **at, field: part[field], **more}
    yield {"type": "response.content_part.done", **at, "part": part}
