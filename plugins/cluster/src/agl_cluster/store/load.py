"""How much a store's server takes at once: beyond a bound, writes are refused with 503 and ``Retry-After``.

A write waits for the commit of its turn, so under overload requests and their bodies pile up in memory.
Invariant: a refused write has changed nothing, and its sender may send it again under the same request id.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agl_cluster.store.outcomes import Busy

MAX_WRITES: Final = 4_096
"""Writes under way, at most."""
MAX_BYTES: Final = 1 << 30
"""Bytes of their bodies, at most. One write alone may be larger than the rest leaves."""
RETRY_AFTER: Final = "1"
"""Seconds after which a refused client asks again."""


class Load:
    """The writes under way in one server."""

    def __init__(self, max_writes: int = MAX_WRITES, max_bytes: int = MAX_BYTES) -> None:
        self.max_writes, self.max_bytes = max_writes, max_bytes
        self.writes = 0
        self.bytes = 0
        self.refused = 0
        """Writes refused since the start."""

    @property
    def full(self) -> bool:
        """Whether another write would be refused."""
        return self.writes >= self.max_writes or self.bytes > self.max_bytes

    @contextmanager
    def writing(self, size: int) -> Iterator[None]:
        """Hold a place for a write with a body of ``size`` bytes. Raise :class:`Busy` if there is none."""
        if self.writes >= self.max_writes or (self.writes and self.bytes + size > self.max_bytes):
            self.refused += 1
            raise Busy(
                f"{self.writes} writes with {self.bytes >> 20} MiB are under way, and this server takes "
                f"{self.max_writes} and {self.max_bytes >> 20} MiB: send the same request again in "
                f"{RETRY_AFTER} s"
            )
        self.writes += 1
        self.bytes += size
        try:
            yield
        finally:
            self.writes -= 1
            self.bytes -= size
