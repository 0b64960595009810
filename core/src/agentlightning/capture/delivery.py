"""The last step of capture: a finished span goes to the sink of its attempt once, or is counted.

Invariant: nothing reaches an attempt after :func:`end_attempt`; later spans are counted as ``late-span``.
Delivery never raises into the agent's code.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from threading import RLock
from typing import Any

from agentlightning.capture.context import AttemptContext
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.fork import after_fork_in_child
from agentlightning.types import Span

_LOG = logging.getLogger(__name__)
_REMEMBERED = 65_536
"""Ended attempts and answered responses are remembered up to this many; older ones are forgotten."""

_lock = RLock()  # a destructor may deliver while its thread does


def _renew() -> None:
    global _lock
    _lock = RLock()


after_fork_in_child(_renew)
_ended: OrderedDict[str, None] = OrderedDict()
_responses: OrderedDict[tuple[str, str], str] = OrderedDict()


def new_span(
    context: AttemptContext,
    name: str,
    parent: tuple[str, str | None],
    attributes: Mapping[str, Any],
    *,
    span_id: str | None = None,
    start: float | None = None,
    error: str | None = None,
) -> Span:
    """A span of this attempt that ends now, without the attributes that are ``None``. ``parent``: trace id
    and parent id. ``start``: by default now. ``error``: the message of a failure.
    """
    now = time.time()
    return Span(
        rollout_id=context.rollout_id,
        attempt_id=context.attempt_id,
        name=name,
        trace_id=parent[0],
        span_id=span_id or secrets.token_hex(8),
        parent_id=parent[1],
        status="error" if error else "ok",
        status_message=error[:2000] if error else None,
        attributes={key: value for key, value in attributes.items() if value is not None},
        start_time=now if start is None else start,
        end_time=now,
    )


def deliver(context: AttemptContext, span: Span) -> bool:
    """Hand ``span`` to the attempt; ``False`` when it came too late or the sink failed, both counted."""
    if context.attempt_id in _ended:
        COUNTS.add("late-span")
        return False
    try:
        context.sink(span)
    except Exception:
        COUNTS.add("sink-error")
        _LOG.warning("the sink of attempt %s failed on span %r", context.attempt_id, span.name, exc_info=True)
        return False
    return True


def end_attempt(attempt_id: str) -> None:
    """Take no more spans for this attempt. Called by the code that entered it, when it has ended."""
    with _lock:
        _ended[attempt_id] = None
        while len(_ended) > _REMEMBERED:
            _ended.popitem(last=False)


def attempt_ended(attempt_id: str) -> bool:
    """Whether :func:`end_attempt` was called for it."""
    return attempt_id in _ended


def remember_response(attempt_id: str, response_id: str, span_id: str) -> None:
    """Remember the call span of a response, so that a reward can name the response."""
    with _lock:
        _responses[attempt_id, response_id] = span_id
        while len(_responses) > _REMEMBERED:
            _responses.popitem(last=False)


def span_of_response(attempt_id: str, response_id: str) -> str | None:
    """The call span of a response, if this process recorded the call."""
    return _responses.get((attempt_id, response_id))


def attempt_trace_id(attempt_id: str) -> str:
    """Trace id (32 hex digits) of an attempt's spans that have no parent."""
    return hashlib.blake2b(attempt_id.encode(), digest_size=16).hexdigest()
