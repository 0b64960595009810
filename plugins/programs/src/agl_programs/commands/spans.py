"""Takes the spans of one attempt's processes and hands them to the attempt.

:class:`~agl_programs.collector.Collector` receives them. In place of ``agl run``'s store and
keys it gets these: a key ring with one key, and a taker that passes spans to the attempt's sink. So a runner
needs neither the store's address nor the run's secret for it.
"""

from __future__ import annotations

import hmac

from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import COUNTS, deliver
from agentlightning.keys import Claims
from agentlightning.types import Span
from agentlightning.types.base import RequestRefused


class AttemptKeyRing:
    """Accepts the key of one attempt."""

    def __init__(self, context: AttemptContext) -> None:
        self._key = context.key or ""
        self._claims = Claims("", context.rollout_id, context.attempt_id, 0, 0.0)

    def check(self, key: str, now: float | None = None) -> Claims:
        """Return the attempt's claims. Raise :class:`.RequestRefused` for any other key."""
        if not self._key or not hmac.compare_digest(key.encode(errors="replace"), self._key.encode()):
            raise RequestRefused(401, "unknown-key", "not the key of this attempt")
        return self._claims


class AttemptSpans:
    """Passes each span to the attempt's sink once, and counts refusals of spans."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context
        self._seen: set[str] = set()

    async def add_span(self, span: Span, *, request_id: str | None = None) -> Span:
        """Take one span; a second one of the same request is dropped, as it was sent again."""
        if request_id not in self._seen:
            self._seen.add(request_id or span.span_id)
            deliver(self._context, span)
        return span

    async def count(
        self,
        kind: str,
        reason: str,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        n: int = 1,
        request_id: str | None = None,
    ) -> None:
        """Count refused spans of this process."""
        COUNTS.add(f"{kind}-{reason}", n)
