"""Requests as objects, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from agentlightning.gateway.answer import UNREADABLE
from agentlightning.gateway.errors import Refused
from agentlightning.webserver.body import LARGE, BodyRefused, TooDeep, aside, check_plain, check_size, read

MOST_CHOICES = 1024
"""Choices of one request: engines sample all of them, and each is a record."""
_bodies = msgspec.json.Decoder(dict[str, Any])


async def received(request: web.Request, limit: int) -> dict[str, Any]:
    """The body of a request; :class:`Refused` for one that is larger than ``limit`` bytes, is not what its
    headers say, or is no JSON object.
    """
    try:
        raw = await read(request, limit)
        check_size(raw)
    except BodyRefused as error:
        refused = Refused(error.status, error.reason, str(error))
        refused.headers = error.headers
        raise refused from None
    return await aside(lambda: decoded(raw)) if len(raw) > LARGE else decoded(raw)


def decoded(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body; :class:`Refused` for anything else, and for too many choices."""
    try:
        body = _bodies.decode(raw)
        check_plain(body)
    except (*UNREADABLE, TooDeep) as error:
        raise Refused(400, "bad-body", f"the request's body is not a JSON object: {error}") from None
    if (n := choices_of(body)) > MOST_CHOICES:
        raise Refused(400, "too-many-choices", f"{n} choices were asked for: at most {MOST_CHOICES} at once")
    return body


def choices_of(body: Mapping[str, Any]) -> int:
    """How many choices a request asks for: ``n`` for each prompt."""
    n, prompt = body.get("n"), body.get("prompt")
    if isinstance(n, float | str):  # engines that coerce take 2.0 and "2" for 2
        n = int(n) if str(n).removesuffix(".0").isdecimal() and len(str(n)) < 9 else 1
    each = n if isinstance(n, int) and n > 0 else 1
    many = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return each * (len(prompt) if many and isinstance(prompt, list) else 1)
