"""Waiting without polling: who waits for work, who waits for rollouts to end.

A signal means "look again", nothing more: the state is in the tables. Spurious signals are harmless, so
writers signal at once and need not know whether their transaction commits. Waiters register *before* they
look, so that no signal falls between looking and waiting.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable


class Listener:
    """One waiter for work of a run (``None``: of any)."""

    __slots__ = ("future", "heard", "run_id")

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.heard = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, timeout: float) -> None:
        """Return when there may be work, or after ``timeout`` seconds."""
        await asyncio.wait([self.future], timeout=timeout)
        self.heard = self.future.done()


class Ending:
    """Waits until all of some rollouts have ended."""

    __slots__ = ("future", "pending")

    def __init__(self, pending: Iterable[str]) -> None:
        self.pending = set(pending)
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def discard(self, rollout_id: str) -> None:
        """This one has ended."""
        self.pending.discard(rollout_id)
        if not self.pending and not self.future.done():
            self.future.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """Return when all have ended, or after ``timeout`` seconds."""
        await asyncio.wait([self.future], timeout=timeout)


class Signals:
    """The waiters of one store, all on its loop."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}  # in order of arrival
        self._endings: defaultdict[str, set[Ending]] = defaultdict(set)
        self.released = False
        """The store is about to close: nobody waits any longer."""

    def release(self) -> None:
        """Let everybody who waits return with what there is."""
        self.released = True
        for listener in self._listeners:
            listener.future.set_result(None)
        self._listeners.clear()
        for waiter in {w for waiters in self._endings.values() for w in waiters}:
            if not waiter.future.done():
                waiter.future.set_result(None)

    def queued(self, run_id: str | None, n: int = 1) -> None:
        """``n`` rollouts of a run wait for a worker: wake as many listeners, first come first."""
        if not self._listeners:
            return
        for listener in [x for x in self._listeners if x.run_id is None or x.run_id == run_id][:n]:
            del self._listeners[listener]
            listener.future.set_result(None)

    def listen(self, run_id: str | None) -> Listener:
        """Register for work; to be followed by :meth:`leave`."""
        listener = Listener(run_id)
        self._listeners[listener] = None
        return listener

    def leave(self, listener: Listener) -> None:
        """Stop listening. A signal that was not heard goes to the next in line."""
        if listener in self._listeners:
            del self._listeners[listener]
        elif not listener.heard:
            self.queued(listener.run_id)

    def ended(self, rollout_id: str) -> None:
        """A rollout has ended."""
        for waiter in self._endings.pop(rollout_id, ()):
            waiter.discard(rollout_id)

    def watch(self, rollout_ids: Iterable[str]) -> Ending:
        """Register for the end of rollouts; to be followed by :meth:`unwatch`."""
        waiter = Ending(rollout_ids)
        for rollout_id in waiter.pending:
            self._endings[rollout_id].add(waiter)
        return waiter

    def unwatch(self, waiter: Ending) -> None:
        """Stop waiting."""
        for rollout_id in waiter.pending:
            waiters = self._endings.get(rollout_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._endings[rollout_id]
