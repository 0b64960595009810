"""Requests as objects."""

from __future__ import annotations

from typing import Any

import msgspec

from agentlightning.gateway.answer import UNREADABLE
from agentlightning.gateway.errors import Refused

_bodies = msgspec.json.Decoder(dict[str, Any])


def decoded(raw: bytes) -> dict[str, Any]:
    """The body of a request; :class:`Refused` for one that is no JSON object."""
    try:
        return _bodies.decode(raw)
    except UNREADABLE as error:
        raise Refused(400, "bad-body", f"the request's body is not a JSON object: {error}") from None
