"""The gate before the engines: closed while weights change.

Invariant: after :meth:`Gate.pause` and a successful :meth:`Gate.drain` no call is at an engine, until
:meth:`Gate.resume`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Counts calls at the engines; holds new ones while paused."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.inside = 0
        """Calls at an engine."""
        self.holding = 0
        """Calls that wait at the gate now."""
        self.held = 0
        """Calls that ever had to wait."""

    @property
    def paused(self) -> bool:
        """New calls wait."""
        return not self._open.is_set()

    def pause(self) -> None:
        """Hold new calls."""
        self._open.clear()

    def resume(self) -> None:
        """Let held calls go on."""
        self._open.set()

    async def wait(self) -> None:
        """Wait until calls may pass."""
        if self._open.is_set():
            return
        self.held += 1
        self.holding += 1
        try:
            while not self._open.is_set():  # it may be closed again before this task runs
                await self._open.wait()
        finally:
            self.holding -= 1

    @contextmanager
    def within(self) -> Iterator[None]:
        """A call at an engine."""
        self.inside += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._idle.set()

    async def drain(self, timeout: float | None) -> bool:
        """Wait until no call is at an engine; False when ``timeout`` seconds did not suffice."""
        try:
            async with asyncio.timeout(timeout):
                while self.inside:
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True
