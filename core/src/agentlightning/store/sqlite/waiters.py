"""Waiting without polling, for work or for rollouts to end.

A signal means "look again", nothing more: the state is in the tables. A spurious signal does no harm, so a
write signals at once, before its transaction commits. A caller registers *before* it looks, so that no signal
is lost between looking and waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Waiter:
    """A caller that waits for a signal."""

    def __init__(self) -> None:
        self.woken = False
        """Whether :meth:`wait` returned because of a signal."""
        self._signal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """Send the signal."""
        if not self._signal.done():
            self._signal.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """Return at the signal, or after ``timeout`` seconds."""
        await asyncio.wait([self._signal], timeout=timeout)
        self.woken = self._signal.done()


class Waiters:
    """The waiters of a store, all on its event loop."""

    def __init__(self) -> None:
        self._workers: dict[Waiter, str | None] = {}
        """Worker → the run whose work it wants (``None``: any), in order of arrival."""
        self._ends: dict[Waiter, set[str]] = {}
        """Waiter → those of its rollouts that have not ended."""
        self.closing = False
        """The store is closing: no wait is long any more."""

    def wake_all(self) -> None:
        """Wake all waiters; the store is closing."""
        self.closing = True
        for waiter in (*self._workers, *self._ends):
            waiter.wake()

    @contextmanager
    def work(self, run_id: str | None) -> Iterator[Waiter]:
        """Register for work of a run. A signal that did not wake this worker goes to the next one."""
        waiter = Waiter()
        self._workers[waiter] = run_id
        try:
            yield waiter
        finally:
            if waiter in self._workers:
                del self._workers[waiter]
            elif not waiter.woken:
                self.notify_queued(run_id)

    def notify_queued(self, run_id: str | None) -> None:
        """Signal that a rollout of a run was queued: wake the worker that has waited longest for it."""
        for waiter, wanted in self._workers.items():
            if wanted is None or wanted == run_id:
                del self._workers[waiter]
                waiter.wake()
                return

    @contextmanager
    def ends(self, rollout_ids: Iterable[str]) -> Iterator[Waiter]:
        """Register for the end of all these rollouts."""
        waiter = Waiter()
        self._ends[waiter] = set(rollout_ids)
        try:
            yield waiter
        finally:
            del self._ends[waiter]

    def notify_ended(self, rollout_id: str) -> None:
        """Signal that a rollout has ended: wake the waiters that wait for no other rollout."""
        for waiter, pending in self._ends.items():
            pending.discard(rollout_id)
            if not pending:
                waiter.wake()
