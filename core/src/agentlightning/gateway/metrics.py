"""Counters of the gateway, as ``GET /metrics`` shows them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from agentlightning.types import Call
from agentlightning.types.select import UNKNOWN

log = logging.getLogger(__name__)

OVER_LENGTH = "over-length"
"""``Call.masked`` of a prompt that was too long."""
OVER_LENGTH_FIELD = "over_length"
"""Key of ``Call.edited``: which policy was applied to it."""


class Metrics:
    """Plain counters since the start. ``recorded`` counts only what the store acknowledged."""

    NAMES = 1_000
    """Callers without a policy that are counted by name: agents choose their names."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Status → records stored."""
        self.masked: Counter[str] = Counter()
        """Reason → records stored that must not be trained."""
        self.refused: Counter[str] = Counter()
        """Reason → requests refused."""
        self.streams: Counter[str] = Counter()
        """``passed`` or ``replayed`` → streamed answers."""
        self.over_length: Counter[str] = Counter()
        """``refused``, ``dropped`` (and refused), ``truncated``, ``unchecked`` → calls; ``messages`` →
        messages that truncation left out."""
        self.failovers: Counter[str] = Counter()
        """Policy → requests whose address was gone, asked again, whole, at another."""
        self.aborted: Counter[str] = Counter()
        """Calls that an engine gave up while their policy was held: ``calls`` that were asked again,
        ``streams`` that ended as errors because a part had left, ``tokens`` that both had cost."""
        self.split = 0
        """Records whose reasoning was split off."""
        self.api_formats: Counter[str] = Counter()
        """``responses``, ``messages`` → records of calls that came by that API."""
        self.unnamed = 0
        """Records of calls that nobody named: their role is ``unknown``."""
        self.unrouted: Counter[str] = Counter()
        """Who asked and has no policy → requests refused for it."""
        self.lost_records = 0
        """Records the store did not take; their answers were withheld."""
        self.hook_errors = 0
        self.uncounted = 0
        """Refusals the store did not count."""

    def count_calls(self, calls: Sequence[Call]) -> None:
        """Count stored records."""
        for call in calls:
            self.calls[call.status] += 1
            if call.masked:
                self.masked[call.masked] += 1
            if call.tags.get("role") == UNKNOWN:
                self._count_unnamed()
            if "api" in call.edited:
                self.api_formats[call.edited["api"]] += 1
            if "reasoning" in call.edited:
                self.split += 1
            if call.masked == OVER_LENGTH:
                self.over_length[
                    "dropped" if call.edited.get(OVER_LENGTH_FIELD) == "drop" else "refused"
                ] += 1
            elif OVER_LENGTH_FIELD in call.edited and call.choice == 0:
                self.over_length["truncated"] += 1
                self.over_length["messages"] += sum(b - a for a, b in call.edited["dropped"])

    def count_unrouted(self, who: str) -> None:
        """Count a request of a caller that is given no policy."""
        known = who in self.unrouted or len(self.unrouted) < self.NAMES
        self.unrouted[who if known else "(others)"] += 1

    def _count_unnamed(self) -> None:
        """Count a call that nobody named; the first says what to do."""
        if not self.unnamed:
            log.warning(
                "a model call came from nobody in particular: no adapter, mark or tag says which agent makes "
                "it. Its role is 'unknown', which `select` can choose like any name. To name such calls, "
                "switch on the adapter of their framework, mark their class with @agl.agent, or make them "
                "within `with agl.tagged(agent=…)`"
            )
        self.unnamed += 1

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "calls": dict(self.calls),
            "masked": dict(self.masked),
            "refused": dict(self.refused),
            "streams": dict(self.streams),
            "over_length": dict(self.over_length),
            "moved": dict(self.failovers),
            "given_up": dict(self.aborted),
            "split": self.split,
            "dialects": dict(self.api_formats),
            "unnamed": self.unnamed,
            "unrouted": dict(self.unrouted),
            "lost_records": self.lost_records,
            "hook_errors": self.hook_errors,
            "uncounted": self.uncounted,
        }
