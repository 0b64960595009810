"""Images of other APIs as chat completions have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import agl_gateway.apis.checks as checks
from agl_gateway.apis.checks import mapping, text, unsupported

Part = dict[str, Any]
_BY_FILE = "send the image itself, as a data URL or by its URL; the gateway keeps no files"


def image(url: str, detail: Any = None) -> Part:
    """An image as chat completions have it."""
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}


def responses_image(part: Mapping[str, Any], path: str) -> Part:
    """An ``input_image`` of the Responses API."""
    if not part.get("image_url"):
        raise unsupported(f"{path}.file_id", _BY_FILE)
    return image(text(part["image_url"], f"{path}.image_url"), part.get("detail"))


def messages_image(block: Mapping[str, Any], path: str) -> Part:
    """An ``image`` block of the Messages API."""
    source = mapping(block.get("source"), f"{path}.source")
    kind = checks.type_of(source, f"{path}.source")
    if kind == "url":
        return image(text(source.get("url"), f"{path}.source.url"))
    if kind != "base64":
        raise unsupported(f"{path}.source of type {kind!r}", _BY_FILE)
    media_type = text(source.get("media_type"), f"{path}.source.media_type")
    return image(f"data:{media_type};base64,{text(source.get('data'), f'{path}.source.data')}")


def contents(parts: Sequence[str | Part]) -> str | list[Part]:
    """The content of a message: its texts joined by newlines, or with images a list of parts."""
    if all(isinstance(part, str) for part in parts):
        return "\n".join(map(str, parts))
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
