"""Waiting without polling, for work or for rollouts to end.

A signal means "look again", nothing more: the state is in the tables. A spurious signal does no harm, so a
write signals at once, before its transaction commits. A caller registers *before* it looks, so that no signal
is lost between looking and waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_SIGNALLED = object()
"""In place of a worker's run: it is not registered any more."""


class Waiter:
    """A caller that waits for a signal."""

    def __init__(self) -> None:
        self.woken = False
        """Whether :meth:`wait` returned because of a signal."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._signal: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """Send the signal, from any thread."""
        if threading.get_ident() == self._thread:
            self._set()
        else:
            with suppress(RuntimeError):  # the waiter's loop has ended
                self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._signal.done():
            self._signal.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """Return at the signal, or after ``timeout`` seconds."""
        await asyncio.wait([self._signal], timeout=timeout)
        self.woken = self._signal.done()


class Waiters:
    """The waiters of a store. Signals may come from any thread."""

    def __init__(self) -> None:
        self._workers: dict[Waiter, Any] = {}
        """Worker → the run whose work it wants (``None``: any), in order of arrival."""
        self._ends: dict[Waiter, set[str]] = {}
        """Waiter → those of its rollouts that have not ended."""
        self._changing = threading.RLock()
        self.closing = False
        """The store is closing: no wait is long any more."""

    def wake_all(self) -> None:
        """Wake all waiters; the store is closing."""
        self.closing = True
        self.look_again()

    def look_again(self) -> None:
        """Wake all waiters: signals may have been missed."""
        with self._changing:
            for waiter in (*self._workers, *self._ends):
                waiter.wake()

    @contextmanager
    def work(self, run_id: str | None) -> Iterator[Waiter]:
        """Register for work of a run. A signal that did not wake this worker goes to the next one."""
        waiter = Waiter()
        with self._changing:
            self._workers[waiter] = run_id
        try:
            yield waiter
        finally:
            with self._changing:
                was_signalled = self._workers.pop(waiter, _SIGNALLED) is _SIGNALLED
            if was_signalled and not waiter.woken:
                self.notify_queued(run_id)

    def notify_queued(self, run_id: str | None) -> None:
        """Signal that a rollout of a run was queued: wake the worker that has waited longest for it."""
        with self._changing:
            for waiter, wanted in self._workers.items():
                if wanted is None or wanted == run_id:
                    del self._workers[waiter]
                    waiter.wake()
                    return

    @contextmanager
    def ends(self, rollout_ids: Iterable[str]) -> Iterator[Waiter]:
        """Register for the end of all these rollouts."""
        waiter = Waiter()
        with self._changing:
            self._ends[waiter] = set(rollout_ids)
        try:
            yield waiter
        finally:
            with self._changing:
                del self._ends[waiter]

    def notify_ended(self, rollout_id: str) -> None:
        """Signal that a rollout has ended: wake the waiters that wait for no other rollout."""
        with self._changing:
            for waiter, pending in self._ends.items():
                pending.discard(rollout_id)
                if not pending:
                    waiter.wake()
