"""Waiting without polling: signals to those who wait for work or for rollouts to end, the store's clock, the
timer that ends overdue attempts, and the times at which the store itself stood still.

**Signals.** A signal means "look again", nothing more: the state is in the tables. A spurious signal does no
harm, so a write signals at once, before its transaction commits. A caller registers *before* it looks, so
that no signal is lost between looking and waiting.

**Time.** Leases and timeouts are differences of times, and a person may set the wall clock. So the store
reads the wall clock once, when it opens, and counts from there with the monotonic clock.

**Stalls.** A blocking call on the store's event loop stops the store too: signs of life lie unread until it
goes on, and the timer may run before they are read. So limits of attempts do not count the time that the
store itself slept, as they do not count the time that it was down. Invariant: a stall adds its own length to
a limit at most, so that a worker that died is found, however often the store stands still.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

Clock = Callable[[], float]
_MIN_DELAY = 0.05
"""Seconds between two runs of the timer, however many attempts are due."""
TICK_SECONDS = 0.1
"""Seconds between two ticks of the loop. A tick that is late by as much again comes after a stall."""
_MAX_STALLS = 256
"""Stalls that are kept apart; beyond them the two oldest count as one that ended with the later."""
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


def monotonic_clock(wall: Clock = time.time, monotonic: Clock = time.monotonic) -> Clock:
    """Return a clock: the wall time now, plus the monotonic time that passes from now on."""
    offset = wall() - monotonic()
    return lambda: offset + monotonic()


class Timer(Protocol):
    """What ends overdue attempts in time."""

    @property
    def armed(self) -> bool:
        """Whether it will look at the attempts again without being told."""

    @property
    def in_charge(self) -> bool:
        """Whether this process ends overdue attempts, and now: another one may do it."""

    def arm(self, delay: float) -> None:
        """Look at the attempts in ``delay`` seconds, unless that is done before."""

    def stop(self) -> None:
        """Look at nothing any more."""


class ExpiryTimer:
    """Runs ``expire`` when the next attempt is overdue; nothing polls.

    ``expire`` returns the seconds until it must run again, or ``None``.
    """

    in_charge = True

    def __init__(self, expire: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._expiring: asyncio.Task[None] | None = None

    @property
    def armed(self) -> bool:
        """Whether the timer will fire on the running loop."""
        return self._handle is not None and self._loop is asyncio.get_running_loop()

    def arm(self, delay: float) -> None:
        """Fire in ``delay`` seconds, unless the timer already fires before that."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(delay, _MIN_DELAY)
        if self._handle is not None:
            if self._loop is loop and self._handle.when() <= when:
                return
            self._handle.cancel()
        self._loop, self._handle = loop, loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._expiring = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        delay = await self._expire()
        if delay is not None:
            self.arm(delay)

    def stop(self) -> None:
        """Cancel the timer and the run that it started."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._expiring is not None:
            self._expiring.cancel()


class LoopWatch:
    """Ticks on the store's event loop while ``needed()`` and notes the stalls of the loop.

    ``clock`` is the store's. A stall is as long as both this clock and the machine's monotonic one say: a
    clock that is set is no stall.
    """

    def __init__(self, clock: Clock, needed: Callable[[], bool]) -> None:
        self._clock, self._needed = clock, needed
        self._seen: tuple[float, float] | None = None
        """Monotonic time and the store's time at the last sign that the loop runs; ``None``: not watched."""
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stalls: list[tuple[float, float]] = []
        """Begin and end of each stall by the store's clock, in order."""

    def start(self) -> None:
        """Watch the running loop from now on. Time since another loop was watched was slept."""
        loop = asyncio.get_running_loop()
        if self._handle is not None and self._loop is loop:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.look()
        self._loop, self._seen = loop, (time.monotonic(), self._clock())
        self._handle = loop.call_later(TICK_SECONDS, self._tick)

    def look(self) -> None:
        """Note a stall that has just ended. Whoever compares a time with a limit calls this first."""
        if self._seen is None:
            return
        seen, self._seen = self._seen, (time.monotonic(), self._clock())
        lost = min(now - before for now, before in zip(self._seen, seen, strict=True))
        late = lost - TICK_SECONDS
        if late > TICK_SECONDS:
            self.note(self._seen[1] - late, self._seen[1])

    def note(self, begin: float, end: float) -> None:
        """Note a stall, by the store's clock."""
        self.stalls.append((begin, end))
        if len(self.stalls) > _MAX_STALLS:
            (a, b), (c, d), *rest = self.stalls
            self.stalls = [(c - (b - a), d), *rest]

    def slept(self, since: float) -> float:
        """Return the seconds after ``since`` in which the loop stood still."""
        return sum(max(0.0, end - max(begin, since)) for begin, end in self.stalls)

    def forget(self, before: float) -> None:
        """Drop the stalls that ended by the time ``before``."""
        self.stalls = [stall for stall in self.stalls if stall[1] > before]

    def stop(self) -> None:
        """Watch no further."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._seen = None

    def _tick(self) -> None:
        self.look()
        if self._needed():
            assert self._loop is not None
            self._handle = self._loop.call_later(TICK_SECONDS, self._tick)
        else:
            self.stop()
