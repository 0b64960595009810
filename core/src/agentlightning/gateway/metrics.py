"""Counters of the gateway."""

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
    """Counters since the start. Records are counted once the store acknowledged them."""

    NAMES = 1_000
    """Callers without a policy that are counted by name, at most: agents choose their names."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.masked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        self.over_length: Counter[str] = Counter()
        """``refused``, ``dropped`` (and refused), ``truncated``, ``unchecked`` → calls; ``messages`` →
        messages that truncation left out."""
        self.failovers: Counter[str] = Counter()
        self.aborted: Counter[str] = Counter()
        """Calls that an engine gave up while their policy was held: ``calls`` that were retried, ``streams``
        that ended as errors because a part had left, ``tokens`` that both had cost."""
        self.translated: Counter[str] = Counter()
        self.unrouted: Counter[str] = Counter()
        self.split = 0
        self.unnamed = 0
        self.lost_records = 0
        self.hook_errors = 0
        self.uncounted = 0

    def count_calls(self, calls: Sequence[Call]) -> None:
        """Count stored records."""
        for call in calls:
            self.calls[call.status] += 1
            if call.masked:
                self.masked[call.masked] += 1
            if call.tags.get("role") == UNKNOWN:
                self._count_unnamed()
            if "api" in call.edited:
                self.translated[call.edited["api"]] += 1
            if "reasoning" in call.edited:
                self.split += 1
            if call.masked == OVER_LENGTH:
                dropped = call.edited.get(OVER_LENGTH_FIELD) == "drop"
                self.over_length["dropped" if dropped else "refused"] += 1
            elif OVER_LENGTH_FIELD in call.edited and call.choice == 0:
                self.over_length["truncated"] += 1
                self.over_length["messages"] += sum(b - a for a, b in call.edited["dropped"])

    def count_unrouted(self, caller: str) -> None:
        """Count a request of a caller without a policy."""
        known = caller in self.unrouted or len(self.unrouted) < self.NAMES
        self.unrouted[caller if known else "(others)"] += 1

    def _count_unnamed(self) -> None:
        """Count a call without agent, role and node; log the first with a way to name such calls."""
        if not self.unnamed:
            log.warning(
                "a model call has no agent's name: no adapter, decorator or tag gives one. Its role is "
                "'unknown', which `select` can choose like any name. To name such calls, switch on the "
                "adapter of the framework, decorate the agent's class with @agl.agent, or make the calls "
                "within `with agl.tagged(agent=…)`"
            )
        self.unnamed += 1

    def as_dict(self) -> dict[str, object]:
        """The counters, for JSON."""
        return {name: dict(n) if isinstance(n, Counter) else n for name, n in vars(self).items()}
