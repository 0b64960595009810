"""Waiting without polling, for work or for rollouts to end.

A signal means "look again", nothing more: the state is in the tables. Spurious signals are harmless, so a
write signals at once, before its transaction commits. Waiters register *before* they look, so that no signal
is lost between looking and waiting.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable


class WorkWaiter:
    """Waits for work of a run (``None``: of any)."""

    __slots__ = ("future", "run_id", "woken")

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.woken = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, timeout: float) -> None:
        """Return when there may be work, or after ``timeout`` seconds."""
        await asyncio.wait([self.future], timeout=timeout)
        self.woken = self.future.done()


class EndWaiter:
    """Waits until all of its rollouts have ended."""

    __slots__ = ("future", "pending")

    def __init__(self, pending: Iterable[str]) -> None:
        self.pending = set(pending)
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def discard(self, rollout_id: str) -> None:
        """Note that a rollout has ended."""
        self.pending.discard(rollout_id)
        if not self.pending and not self.future.done():
            self.future.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """Return when all have ended, or after ``timeout`` seconds."""
        await asyncio.wait([self.future], timeout=timeout)


class Waiters:
    """The waiters of a store, all on its event loop."""

    def __init__(self) -> None:
        self._workers: dict[WorkWaiter, None] = {}  # in order of arrival
        self._end_waiters: defaultdict[str, set[EndWaiter]] = defaultdict(set)
        self.closing = False
        """The store is closing: no wait is long any more."""

    def wake_all(self) -> None:
        """Wake all waiters; the store is closing."""
        self.closing = True
        for worker in self._workers:
            worker.future.set_result(None)
        self._workers.clear()
        for waiter in {w for waiters in self._end_waiters.values() for w in waiters}:
            if not waiter.future.done():
                waiter.future.set_result(None)

    def notify_queued(self, run_id: str | None, n: int = 1) -> None:
        """``n`` rollouts of a run were queued: wake as many workers, the longest waiting first."""
        if not self._workers:
            return
        for worker in [x for x in self._workers if x.run_id is None or x.run_id == run_id][:n]:
            del self._workers[worker]
            worker.future.set_result(None)

    def add_worker(self, run_id: str | None) -> WorkWaiter:
        """Register for work, until :meth:`remove_worker`."""
        worker = WorkWaiter(run_id)
        self._workers[worker] = None
        return worker

    def remove_worker(self, worker: WorkWaiter) -> None:
        """Unregister. A signal that woke nobody goes to the next worker."""
        if worker in self._workers:
            del self._workers[worker]
        elif not worker.woken:
            self.notify_queued(worker.run_id)

    def notify_ended(self, rollout_id: str) -> None:
        """Wake those who wait for a rollout's end."""
        for waiter in self._end_waiters.pop(rollout_id, ()):
            waiter.discard(rollout_id)

    def add_end_waiter(self, rollout_ids: Iterable[str]) -> EndWaiter:
        """Register for the end of rollouts, until :meth:`remove_end_waiter`."""
        waiter = EndWaiter(rollout_ids)
        for rollout_id in waiter.pending:
            self._end_waiters[rollout_id].add(waiter)
        return waiter

    def remove_end_waiter(self, waiter: EndWaiter) -> None:
        """Unregister."""
        for rollout_id in waiter.pending:
            waiters = self._end_waiters.get(rollout_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._end_waiters[rollout_id]
