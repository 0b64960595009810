"""Images, and other parts of a prompt that are no text: passed to the engine, and recorded by hash.

A URL is recorded as it is; content that comes within the request, as a data URL or in base64, as its sha256,
media type and size. Invariants: the engine gets each part as the agent sent it; equal contents have equal
records.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any
from urllib.parse import unquote_to_bytes

from agentlightning.gateway.apis import Message

MEDIA = "media"
"""``Call.masked`` of a call whose prompt is not only text: drivers cannot recompute its logprobs."""
Part = dict[str, Any]
_TEXTS = frozenset({"text", "refusal", "thinking", "reasoning", "input_text", "output_text"})
_LONG = 1024
"""Characters from which a value of a part is content in base64."""
_DATA_URL = re.compile(r"data:([^;,]*)([^,]*),", re.IGNORECASE)


def recorded(messages: Any) -> list[Message] | None:
    """The messages as they are recorded; ``None`` if they are only text, and need no change."""
    if not isinstance(messages, list):
        return None
    in_parts = [m for m in messages if isinstance(m, dict) and isinstance(m.get("content"), list)]
    if not any(map(media_parts, in_parts)):
        return None
    return [_recorded_message(message) if media_parts(message) else message for message in messages]


def media_parts(message: Any) -> list[Part]:
    """The parts of a message that are no text."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return []
    return [
        part
        for part in content
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind not in _TEXTS
    ]


def _recorded_message(message: Message) -> Message:
    media = [id(part) for part in media_parts(message)]
    content = [_without_content(part) if id(part) in media else part for part in message["content"]]
    return {**message, "content": content}


def _without_content(value: Any) -> Any:
    """A part with references in the place of the contents in it. ``{"url": data URL}`` becomes the reference
    itself, beside the object's other fields.
    """
    if isinstance(value, list):
        return [_without_content(item) for item in value]
    if not isinstance(value, dict):
        return _reference(value) if _is_content(value) else value
    out: Part = {}
    for name, item in value.items():
        if name in ("url", "data") and _is_content(item):
            out |= _reference(item)
        else:
            out[name] = _without_content(item)
    return out


def _is_content(value: Any) -> bool:
    return isinstance(value, str) and (
        _DATA_URL.match(value) is not None or (len(value) >= _LONG and "://" not in value[:16])
    )


def _reference(value: str) -> Part:
    """Hash, media type and size of the content of a data URL, or of base64."""
    url = _DATA_URL.match(value)
    payload = value[url.end() :] if url else value
    if url and "base64" not in url[2].lower():
        raw = unquote_to_bytes(payload)
    else:
        try:
            raw = base64.b64decode(payload)
        except (binascii.Error, ValueError):  # the engine will say so; the record has the text's hash
            raw = payload.encode("utf-8", "surrogatepass")
    media_type = (url[1] or "text/plain") if url else None
    return {"sha256": hashlib.sha256(raw).hexdigest(), "media_type": media_type, "bytes": len(raw)}
