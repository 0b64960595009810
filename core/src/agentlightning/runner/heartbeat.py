"""The heartbeat of a runner: it keeps the leases of running attempts and reports which leases are lost.

The store takes a worker for dead after ``unresponsive_seconds`` of a rollout without a heartbeat. So at least
four heartbeats are sent within the shortest of these times. They are sent from a thread with an event loop
of its own: whatever blocks the runner's loop costs no attempt, while a process that is dead or stopped falls
silent as a whole. The thread is a daemon: it keeps no process alive that wants to end.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from agentlightning.log_limit import limited
from agentlightning.store.base import Store

log = limited(__name__)
PER_SILENCE = 4
"""Heartbeats within ``unresponsive_seconds``."""


class Heartbeat:
    """Sends a heartbeat for ``worker_id`` every ``longest`` seconds, or more often if an attempt needs it.

    ``on_lost`` is called on the runner's loop with each attempt whose lease is lost. ``heartbeat-failed`` and
    ``lease-lost`` are counted in ``counts``, on that loop too. Methods are called on the runner's loop.
    """

    def __init__(
        self,
        store: Store,
        worker_id: str,
        longest: float,
        on_lost: Callable[[str], None],
        counts: Counter[str],
    ) -> None:
        self.store, self.worker_id, self.longest = store, worker_id, longest
        self.on_lost, self.counts = on_lost, counts
        self._intervals: dict[str, float] = {}
        """Attempt → seconds between two heartbeats that it needs. Only the runner's loop changes it."""
        self.silent = False
        """Whether the store did not answer the last heartbeat. Any thread may ask."""
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """The thread's, while heartbeats are sent."""

    def add(self, attempt_id: str, unresponsive: float | None) -> None:
        """Keep the lease of an attempt. ``unresponsive``: its rollout's ``unresponsive_seconds``."""
        needed = self.longest if unresponsive is None else unresponsive / PER_SILENCE
        sooner = needed < self.interval
        self._intervals[attempt_id] = needed
        if sooner and self._loop is not None:  # send one now, and then at the present interval
            self._loop.call_soon_threadsafe(self._wake.set)

    def discard(self, attempt_id: str) -> None:
        """Send no further heartbeat for an attempt: its agent has ended."""
        self._intervals.pop(attempt_id, None)

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats. Any thread may ask."""
        return min([self.longest, *self._intervals.copy().values()])

    def start(self) -> None:
        """Send heartbeats until :meth:`stop` was called as often as this."""
        self._users += 1
        if self._loop is None:
            self._runner = asyncio.get_running_loop()
            self._loop = asyncio.new_event_loop()  # calls are queued until the thread runs it
            self._wake = asyncio.Event()
            self._beating = self._loop.create_task(self._beat(self._wake))
            name, given = f"heartbeat-{self.worker_id}", (self._loop, self._beating)
            self._thread = threading.Thread(target=self._work, args=given, name=name, daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        """Send no further heartbeat, and return when the thread has ended. It ends amid a request too: a
        heartbeat that is lost changes nothing.
        """
        self._users -= 1
        if self._users == 0 and self._loop is not None:
            loop, self._loop = self._loop, None
            loop.call_soon_threadsafe(self._beating.cancel)
            await asyncio.to_thread(self._thread.join)

    def _lost(self, attempt_ids: list[str]) -> None:
        """Report leases that the store no longer knows as ours, in one line."""
        lost = [one for one in attempt_ids if self._intervals.pop(one, None) is not None]
        if not lost:
            return
        self.counts["lease-lost"] += len(lost)
        more = f" and {len(lost) - 1} others" if len(lost) > 1 else ""
        log.warning("attempt %s%s: ended, or went to another worker; the agent is stopped", lost[0], more)
        for attempt_id in lost:
            self.on_lost(attempt_id)

    # ---------------------------------------------------------------------------------------- in the thread
    def _work(self, loop: asyncio.AbstractEventLoop, beating: asyncio.Task[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(asyncio.wait({beating}))
            if not beating.cancelled():
                beating.result()
        except Exception:
            log.exception("runner %s: its heartbeat has ended; its leases will be lost", self.worker_id)

    async def _beat(self, wake: asyncio.Event) -> None:
        store = self.store.for_other_loop()
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), self.interval)
                wake.clear()
                await self._send(store)
        finally:
            if store is not self.store:
                await store.close()

    async def _send(self, store: Store) -> None:
        try:
            lost = await store.heartbeat(self.worker_id, sorted(self._intervals.copy()))
            self.silent = False
        except Exception:
            self.silent = True
            self._tell(self.counts.update, {"heartbeat-failed": 1})
            log.exception("runner %s: heartbeat failed; again in %g s", self.worker_id, self.interval)
            return
        if lost:
            self._tell(self._lost, lost)

    def _tell(self, what: Callable[..., object], *args: object) -> None:
        """Call ``what`` on the runner's loop, if that has not ended."""
        with suppress(RuntimeError):
            self._runner.call_soon_threadsafe(what, *args)
