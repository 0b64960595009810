"""The heartbeat of a runner: it keeps the leases of running attempts and reports which leases are lost.

The store takes a worker for dead after ``unresponsive_seconds`` of a rollout without a heartbeat. So at least
four heartbeats are sent within the shortest of these times.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from agentlightning.store.base import Store

log = logging.getLogger(__name__)
PER_SILENCE = 4
"""Heartbeats within ``unresponsive_seconds``."""


@dataclass(slots=True)
class Heartbeat:
    """Sends a heartbeat for ``worker_id`` every ``longest`` seconds, or more often if an attempt needs it.
    ``on_lost`` is called with each attempt whose lease is lost. ``heartbeat-failed`` and ``lease-lost`` are
    counted in ``counts``.
    """

    store: Store
    worker_id: str
    longest: float
    on_lost: Callable[[str], None]
    counts: Counter[str]
    _intervals: dict[str, float] = field(default_factory=dict)
    """Attempt → seconds between two heartbeats that it needs."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, attempt_id: str, unresponsive: float | None) -> None:
        """Keep the lease of an attempt. ``unresponsive``: its rollout's ``unresponsive_seconds``."""
        needed = self.longest if unresponsive is None else unresponsive / PER_SILENCE
        if needed < self.interval:
            self._wake.set()
        self._intervals[attempt_id] = needed

    def discard(self, attempt_id: str) -> None:
        """Send no further heartbeat for an attempt: its agent has ended."""
        self._intervals.pop(attempt_id, None)

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return min([self.longest, *self._intervals.values()])

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        self._wake = asyncio.Event()  # of this loop
        while True:
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self.interval)
            await self._send()

    async def _send(self) -> None:
        try:
            lost = await self.store.heartbeat(self.worker_id, sorted(self._intervals))
        except Exception:
            self.counts["heartbeat-failed"] += 1
            log.exception("runner %s: heartbeat failed; again in %g s", self.worker_id, self.interval)
            return
        for attempt_id in lost:
            if self._intervals.pop(attempt_id, None) is not None:
                self.counts["lease-lost"] += 1
                log.warning("attempt %s has ended or went to another worker; stopping it", attempt_id)
                self.on_lost(attempt_id)
