"""The last step of capture: hand each finished span to the sink of its attempt once, or count it.

Invariants: nothing reaches an attempt after :func:`end_attempt`; later spans are counted as ``late-span``.
Delivery never raises into the agent's code. Capture counts everything that it leaves out (:data:`COUNTS`), so
that a ledger can explain a missing record.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, ContextEntry
from agentlightning.log_limit import limited
from agentlightning.types import Span, Tags


def after_fork_in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in every process that this one forks, before the process's own code runs: only the
    forking thread lives on there, and nobody releases another thread's lock.
    """
    if hasattr(os, "register_at_fork"):  # systems without it have no fork
        os.register_at_fork(after_in_child=renew)


_lock = RLock()  # a destructor may count or deliver while its thread does


def _renew() -> None:
    global _lock
    _lock = RLock()


after_fork_in_child(_renew)


IGNORED_SCOPES: set[str] = set()
"""Instrumentation scopes whose spans are not recorded; adapters add and remove theirs."""


class Counts:
    """Thread-safe counters, reason → times."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.listener: Callable[[str, int], None] | None = None
        """Called with each new count, where another process keeps the ledger (``agl run``)."""

    def add(self, reason: str, times: int = 1) -> None:
        """Count ``reason``."""
        with _lock:
            self._counts[reason] += times
        if self.listener is not None:
            self.listener(reason, times)

    def snapshot(self) -> dict[str, int]:
        """Return the counts as they are now."""
        with _lock:
            return dict(self._counts)

    def clear(self) -> None:
        """Set all counters to zero (a new run, a test)."""
        with _lock:
            self._counts.clear()


COUNTS = Counts()
"""The counts of this process. Reasons: ``late-span, span-outside-attempt, sink-error, convert-stringified,
wire-error, wire-unavailable, wire-not-read, identity-error, bad-ids, …``."""


_LOG = limited(__name__)
_REMEMBERED = 65_536
"""Ended attempts and answered responses are remembered up to this many; older ones are forgotten."""

_ended: OrderedDict[str, None] = OrderedDict()
_responses: OrderedDict[tuple[str, str], str] = OrderedDict()
_open_calls: dict[str, dict[int, Callable[[], None]]] = {}
"""Attempt → a function for each call that its agent has not read to the end, which ends it."""


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
    """Make a span of this attempt that ends now; leave out attributes that are ``None``.

    ``parent``: trace id and parent id. ``start``: by default now. ``error``: the message of a failure.
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


def identity_attributes(context: AttemptContext, tags: Tags) -> dict[str, str]:
    """Return the attributes that name a span's attempt, its agent and its other tags."""
    agent = {semconv.AGENT_NAME: tags["agent"]} if "agent" in tags else {}
    return {
        semconv.ROLLOUT_ID: context.rollout_id,
        semconv.ATTEMPT_ID: context.attempt_id,
        **agent,
        **{semconv.TAG_PREFIX + name: value for name, value in tags.items()},
    }


def deliver(context: AttemptContext, span: Span) -> None:
    """Hand ``span`` to the attempt. Count a span that comes too late, and one on which the sink fails."""
    if context.attempt_id in _ended:
        COUNTS.add("late-span")
        return
    try:
        context.sink(span)
    except Exception:
        COUNTS.add("sink-error")
        _LOG.warning("the sink of attempt %s failed on span %r", context.attempt_id, span.name, exc_info=True)


def end_attempt(attempt_id: str) -> None:
    """End the calls that the agent has not read to the end, and take no more spans for this attempt. The code
    that entered the attempt calls it at the end.
    """
    give_up_calls(attempt_id)
    _remember(_ended, attempt_id, None)


def give_up_calls(attempt_id: str) -> None:
    """End the calls that the agent has not read to the end. Python would do so once it collects their
    streams: after the end of the attempt, or never.
    """
    for give_up in list(_open_calls.pop(attempt_id, {}).values()):
        give_up()


def begin_call(attempt_id: str, give_up: Callable[[], None]) -> Callable[[], None]:
    """Have ``give_up`` called at the end of the attempt. The returned function, which the call's own end
    calls, prevents that.
    """
    number = id(give_up)
    if attempt_id not in _ended:
        with _lock:
            _open_calls.setdefault(attempt_id, {})[number] = give_up

    def ended() -> None:
        with _lock:
            calls = _open_calls.get(attempt_id, {})
            calls.pop(number, None)
            if not calls:
                _open_calls.pop(attempt_id, None)

    return ended


def attempt_ended(attempt_id: str) -> bool:
    """Return whether :func:`end_attempt` was called for this attempt."""
    return attempt_id in _ended


def remember_response(attempt_id: str, response_id: str, span_id: str) -> None:
    """Remember the call span of a response, so that a reward can name the response."""
    _remember(_responses, (attempt_id, response_id), span_id)


def _remember(table: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    with _lock:
        table[key] = value
        while len(table) > _REMEMBERED:
            table.popitem(last=False)


def span_of_response(attempt_id: str, response_id: str) -> str | None:
    """Return the id of a response's call span, or ``None`` if this process did not record the call."""
    return _responses.get((attempt_id, response_id))


def attempt_trace_id(attempt_id: str) -> str:
    """Return the trace id (32 hex digits) of the attempt's spans that have no parent."""
    return hashlib.blake2b(attempt_id.encode(), digest_size=16).hexdigest()


@dataclass(slots=True)
class PendingToolCall:
    """A tool call in progress. Set ``result`` and ``failed`` once they are known."""

    name: str
    call_id: str
    arguments: str
    """As the model wrote them."""
    result: str | None = None
    """The text that the agent gets; ``None``: the call returned nothing."""
    failed: bool = False
    start: float = field(default_factory=time.time)
    span: Span | None = None
    """The framework's own span, once it has ended."""


PENDING: Final = ContextEntry[PendingToolCall]("agl-tool-call")


def hold_span(span: Span) -> bool:
    """Hold back the framework's span of the pending tool call. Return ``False`` for any other span."""
    call = PENDING.get()
    if call is None or span.attributes.get(semconv.TOOL_CALL_ID) != call.call_id:
        return False
    call.span = span
    return True
