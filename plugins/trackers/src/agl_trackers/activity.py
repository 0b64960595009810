"""What a run does now, as one line: for a terminal between two steps, and for a log.

The rollouts that end and the calls that are recorded are counted here; how far an update is, its driver says
(``agl_progress``). Invariant: a figure that is not known is left out, not shown as 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from agentlightning.types import Progress


class Activity:
    """The present piece of work. ``clock``: seconds that only rise."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._now: Progress | None = None
        self._began = 0.0
        self._awaited: set[str] = set()
        self._ended: set[str] = set()
        """Rollouts whose end nobody has waited for yet: those of later steps may end first."""
        self._tokens = 0
        self._memory: dict[str, int] = {}

    def progress(self, progress: Progress) -> None:
        """Note how far it is; another piece of work than before begins now."""
        before = self._now
        if before is None or _key(before) != _key(progress):
            self._began, self._tokens = self._clock(), 0
            self._ended -= self._awaited
            self._awaited = set()
        self._awaited |= set(progress.rollouts)
        self._memory = progress.memory or self._memory
        self._now = progress

    def rollout_ended(self, rollout_id: str) -> None:
        """Count the end of a rollout."""
        self._ended.add(rollout_id)

    def called(self, tokens: int) -> None:
        """Count a call with ``tokens`` answered tokens."""
        self._tokens += tokens

    def end(self) -> None:
        """The work is done; nothing is known of the next."""
        self._now = None

    @property
    def step(self) -> int | None:
        """The step that it belongs to, from 0."""
        return self._now.step if self._now else None

    def line(self) -> str:
        """The line; empty if nothing is under way."""
        now = self._now
        if now is None:
            return ""
        seconds = self._clock() - self._began
        done = now.done + len(self._ended & self._awaited)
        total = now.total + len(self._awaited)
        tokens = now.tokens + (self._tokens if self._awaited else 0)
        parts = [f"{now.what} of {now.policy}" if now.policy else now.what]
        if total:
            parts[0] += f" {done} of {total}" + (f" {now.unit}" if now.unit != now.what else "")
        if tokens and seconds > 0:
            rate = tokens / seconds
            parts.append(f"{rate:.{int(rate < 10)}f} tokens/s")
        parts.append(f"{seconds:.0f} s")
        if self._memory:
            sizes = (f"{name} {size / 1e9:.1f} GB" for name, size in self._memory.items())
            parts.append(f"memory: {', '.join(sizes)}")
        return " · ".join(parts)


def _key(progress: Progress) -> tuple[str, int | None, str | None]:
    return progress.what, progress.step, progress.policy
