"""The gate before the engines: closed while weights change, for all policies or for some.

An engine may give up calls of a held policy to make way for new weights: with the finish reason ``abort``,
with an error, or by hanging up. Such a call is retried whole after the release. Invariants: a call is retried
only if its policy was held since it was forwarded, so at most once per hold, and only if no part of its
answer has left for the agent; the tokens of the first try are counted.

Invariants of the gate: after :meth:`PauseGate.hold` of :data:`ALL` and a successful :meth:`PauseGate.drain`
no call is at an engine until the release; while a policy is held, no call of that policy is sent to one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

ABORTED_BY_ENGINE = "aborted-by-engine"
"""Error code of a call that its engine gave up and that cannot be retried: part of its answer has left."""
ALL: Final = ""
"""In place of a policy: every policy."""


class PauseGate:
    """Counts calls at the engines, and makes new ones wait while it is closed."""

    def __init__(self) -> None:
        self._idle = asyncio.Event()
        self._idle.set()
        self._released: dict[str, asyncio.Event] = {}
        """Held policy → event of its release."""
        self._holds: Counter[str] = Counter()
        self.in_flight = 0
        """Calls at an engine."""
        self.waiting = 0
        """Calls that wait at the gate now."""
        self.waited_total = 0
        """Calls that ever had to wait."""

    @property
    def paused(self) -> bool:
        """Whether new calls wait, whatever their policy."""
        return ALL in self._released

    @property
    def policies(self) -> list[str]:
        """The held policies."""
        return sorted(self._released.keys() - {ALL})

    def hold(self, policy: str) -> None:
        """Make new calls of ``policy`` wait. A second hold changes nothing."""
        if policy not in self._released:
            self._released[policy] = asyncio.Event()
            self._holds[policy] += 1

    def release(self, policy: str) -> None:
        """Let calls of ``policy`` go on, unless another hold keeps them."""
        if released := self._released.pop(policy, None):
            released.set()

    def hold_count(self, policy: str) -> int:
        """How often ``policy`` has been held."""
        return self._holds[policy]

    async def wait(self, policy: str) -> None:
        """Wait until calls of ``policy`` may pass."""
        if self._closed(policy) is None:
            return
        self.waited_total += 1
        self.waiting += 1
        try:
            while (closed := self._closed(policy)) is not None:  # another may close before this task runs
                await closed.wait()
        finally:
            self.waiting -= 1

    def _closed(self, policy: str) -> asyncio.Event | None:
        """The event that a call of ``policy`` waits for; ``None``: it may pass."""
        return self._released.get(ALL) or self._released.get(policy)

    def __enter__(self) -> None:
        """Count a call that is at an engine during the block."""
        self.in_flight += 1
        self._idle.clear()

    def __exit__(self, *error: object) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def drain(self, timeout: float | None) -> bool:
        """Wait until no call is at an engine. Return False if ``timeout`` seconds did not suffice."""
        try:
            async with asyncio.timeout(timeout):
                while self.in_flight:
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True
