"""How far an update is, told to the run while it computes: rows, tokens, and the memory of the processes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentlightning.types import Progress, Row

SECONDS = 0.5
"""Between two messages, at least."""
Tell = Callable[[int, int, int], None]
"""``tell(done, total, tokens)``: rows computed, rows to compute, tokens of those computed."""


class Meter:
    """Counts the rows that an update has computed."""

    def __init__(self, total: int, tell: Tell | None) -> None:
        self._total, self._tell = total, tell
        self._done = self._tokens = 0

    def add(self, rows: Sequence[Row]) -> None:
        """``rows`` have been computed."""
        self._done += len(rows)
        self._tokens += sum(len(row.token_ids) for row in rows)
        if self._tell is not None:
            self._tell(self._done, self._total, self._tokens)


def teller(say: Callable[[Progress], None], step: int, processes: Callable[[], Mapping[str, int]]) -> Tell:
    """A ``tell`` for another thread; ``say`` is called on the event loop that runs now. ``processes``: ids by
    name.
    """
    loop = asyncio.get_running_loop()
    last = 0.0

    def tell(done: int, total: int, tokens: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS:
            return
        last = now
        memory = {name: size for name, pid in processes().items() if (size := resident(pid)) is not None}
        progress = Progress(
            what="update", step=step, unit="rows", done=done, total=total, tokens=tokens, memory=memory
        )
        loop.call_soon_threadsafe(say, progress)

    return tell


def resident(pid: int) -> int | None:
    """Bytes of a process that are in memory (shared pages too); None where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
