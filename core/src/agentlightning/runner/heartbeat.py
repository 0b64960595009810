"""A runner's heartbeat: it keeps the leases of its attempts, and learns which of them it has lost.

The store takes a worker for dead that is silent for a rollout's ``unresponsive_seconds``, so a heartbeat is
sent at least four times within the shortest of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from agentlightning.store.base import Store

log = logging.getLogger(__name__)
PER_SILENCE = 4
"""Heartbeats within ``unresponsive_seconds``."""


@dataclass(slots=True)
class Heartbeat:
    """Sends a heartbeat for ``worker_id`` every ``longest`` seconds, or more often if an attempt needs it.
    ``on_lost`` is called with each attempt whose lease is lost. ``counts``: of ``heartbeat-failed`` and
    ``lease-lost``.
    """

    store: Store
    worker_id: str
    longest: float
    on_lost: Callable[[str], None]
    counts: Counter[str]
    _intervals: dict[str, float] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _current_wait: float = math.inf

    def add(self, attempt_id: str, unresponsive: float | None) -> None:
        """Keep the lease of an attempt. ``unresponsive``: its rollout's ``unresponsive_seconds``."""
        wanted = self.longest if unresponsive is None else unresponsive / PER_SILENCE
        self._intervals[attempt_id] = wanted
        if wanted < self._current_wait:
            self._wake.set()

    def discard(self, attempt_id: str) -> None:
        """Let the lease of an attempt go: its agent has ended."""
        self._intervals.pop(attempt_id, None)

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return min([self.longest, *self._intervals.values()])

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        self._wake = asyncio.Event()  # of this loop
        while True:
            self._current_wait = self.interval
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), self._current_wait)
            except TimeoutError:
                pass
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
