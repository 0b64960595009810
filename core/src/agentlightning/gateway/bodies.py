"""Requests as objects, within bounds."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from agentlightning.gateway.answer import UNREADABLE
from agentlightning.gateway.errors import Refused
from agentlightning.webserver.body import LARGE, BodyRefused, TooDeep, aside, check_plain, check_size, read

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
    """The JSON object of a body; :class:`Refused` for anything else."""
    try:
        body = _bodies.decode(raw)
        check_plain(body)
    except (*UNREADABLE, TooDeep) as error:
        raise Refused(400, "bad-body", f"the request's body is not a JSON object: {error}") from None
    return body
