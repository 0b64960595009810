"""The body of a request as a JSON object, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.upstream.answer import DECODE_ERRORS
from agentlightning.webserver.body import (
    MAX_DEPTH,
    NotPlain,
    check_container_count,
    check_plain,
    decoded,
    read,
)

MAX_CHOICES = 1024
"""Choices of one request at most: engines sample all of them, and each is a record."""
_bodies = msgspec.json.Decoder(dict[str, Any])


async def read_json(request: web.Request, limit: int, take: Callable[[int], None]) -> dict[str, Any]:
    """Read the JSON object of a request's body. Raise :class:`RequestRefused` when the body is larger than
    ``limit`` bytes, contradicts its headers, or is no JSON object. ``take`` is told its bytes
    and may refuse.
    """
    raw = await read(request, limit)
    take(len(raw))
    check_container_count(raw)
    return await decoded(raw, decode_json)


def decode_json(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise :class:`RequestRefused` for anything else, and for too many choices."""
    try:
        body = _bodies.decode(raw)
        if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:  # fewer cannot be nested more deeply
            check_plain(body)
    except (*DECODE_ERRORS, NotPlain) as error:
        raise RequestRefused(400, "bad-body", f"the request's body is not a JSON object: {error}") from None
    if (n := choice_count(body)) > MAX_CHOICES:
        message = f"{n} choices were asked for: at most {MAX_CHOICES} at once"
        raise RequestRefused(400, "too-many-choices", message)
    return body


def choice_count(body: Mapping[str, Any]) -> int:
    """Number of choices that a request asks for: ``n`` for each prompt."""
    n, prompt = body.get("n"), body.get("prompt")
    if isinstance(n, float | str):  # engines that coerce take 2.0 and "2" for 2
        n = int(n) if str(n).removesuffix(".0").isdecimal() and len(str(n)) < 9 else 1
    each = n if isinstance(n, int) and n > 0 else 1
    many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return each * (len(prompt) if many and isinstance(prompt, list) else 1)
