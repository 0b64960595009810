"""The events of Agent Lightning 1.0: a program posts what it says of its rollout to ``AGL_EVENT_URL``.

An event is ``{"event_type": …, "data": {…}}``, sent with the attempt's key. ``reward`` is the reward of the
rollout, ``data.value``; any other type is kept as an annotation. Both are spans of the attempt, and count as
what the program emits in other ways does. Source: ``schemas.py`` and ``server/routes/events.py`` of 1.0.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import msgspec

from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.emit import BODY, emit_reward, emit_span
from agentlightning.capture.records import BadRecord
from agentlightning.keys import Claims
from agentlightning.semconv import ANNOTATION_SPAN
from agentlightning.types import Span
from agentlightning.types.base import RequestRefused
from agl_programs.inside.settings import ChildSettings

PATH = "/api/rollouts/{rollout_id}/attempt/{attempt_id}/events"
BODY_LIMIT = 1 << 20
"""Bytes of one event."""
REWARD = "reward"
EVENT_TYPE = "agl.event.type"
"""Attribute with the type of an event that is no reward."""


class Event(msgspec.Struct):
    """What a program posts."""

    event_type: str
    data: dict[str, Any] = {}


def event_variables(settings: ChildSettings) -> dict[str, str]:
    """Return the three variables that a program for 1.0 reads."""
    path = PATH.format(rollout_id=quote(settings.rollout_id), attempt_id=quote(settings.attempt_id))
    return {
        "AGL_OPENAI_BASE_URL": settings.gateway,
        "AGL_EVENT_URL": settings.store + path,
        "AGL_KEY": settings.key,
    }


def read_event(body: bytes, claims: Claims, path: dict[str, str]) -> tuple[Span, bytes]:
    """Return the span of a posted event, and the answer, as 1.0 gives it. ``path``: the ids in the request's
    path. Raise :class:`.RequestRefused` for another attempt's, and for one that cannot be read.
    """
    if (path["rollout_id"], path["attempt_id"]) != (claims.rollout_id, claims.attempt_id):
        raise RequestRefused(403, "foreign-event", f"the key is that of attempt {claims.attempt_id}")
    try:
        event = msgspec.json.decode(body, type=Event)
        found = _span(event, claims)
    except (msgspec.DecodeError, BadRecord, ValueError, RecursionError) as error:
        raise RequestRefused(
            422, "bad-event", f'an event is {{"event_type": "reward", "data": {{"value": 1.0}}}}: {error}'
        ) from None
    told = {**path, "event_type": event.event_type, "timestamp": time.time(), "data": event.data}
    return found, msgspec.json.encode(told)


def _span(event: Event, claims: Claims) -> Span:
    made: list[Span] = []
    context = AttemptContext(rollout_id=claims.rollout_id, attempt_id=claims.attempt_id, sink=made.append)
    with attempt_context(context):
        if event.event_type == REWARD:
            rest = dict(event.data)
            value: Any = rest.pop("value", None)
            return emit_reward(value, attributes={BODY: rest} if rest else None)
        return emit_span(ANNOTATION_SPAN, {EVENT_TYPE: event.event_type, BODY: event.data}, None)
