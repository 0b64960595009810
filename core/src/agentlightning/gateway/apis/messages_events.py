"""A whole message of Anthropic's API as the typed events of its stream.

Invariant: what the SDK accumulates of the events is the message. What was sampled rides on the opening event:
a replayed stream knows it from the start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentlightning.gateway.apis.base import typed_event
from agentlightning.gateway.apis.chat import cut

PING = typed_event({"type": "ping"})
_TEXTS = {"text": "text", "thinking": "thinking"}


def message_events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """From ``message_start`` to ``message_stop``."""
    return map(typed_event, _events(answer))


def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    usage = answer["usage"]
    begun = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 0}}}
    for index, block in enumerate(answer["content"]):
        yield from _block(block, index)
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def _block(block: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    if field := _TEXTS.get(kind):
        empty: Any = ""
        deltas = [{"type": f"{kind}_delta", field: piece} for piece in cut(block[field])]
    else:
        field, empty = "input", {}
        written = json.dumps(block["input"], ensure_ascii=False)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(written)]
    yield {"type": "content_block_start", "index": index, "content_block": {**block, field: empty}}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}
