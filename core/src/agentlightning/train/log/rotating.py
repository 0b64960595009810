"""A log file that several processes write and that never grows without bound.

Invariant: a line is written whole, to the file that has the name at that moment or to the one just renamed.
"""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import os
from pathlib import Path

BYTES = 10_000_000
"""Size at which a file is renamed to ``<name>.1``."""
KEPT = 3
"""Renamed files that are kept."""


class RotatingLog(logging.handlers.WatchedFileHandler):
    """Appends records. Whoever finds the file too large renames it, under a lock on ``<name>.lock``; the
    others notice by the file's identity and open the new one.
    """

    def __init__(self, path: Path, *, most_bytes: int = BYTES, kept: int = KEPT) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.most_bytes, self.kept = most_bytes, kept
        self.path = path
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and rotate before it where the file is full. Errors are handled as logging's."""
        try:
            if self._is_full():
                self._rotate()
        except OSError:
            self.handleError(record)
        super().emit(record)

    def _is_full(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size >= self.most_bytes

    def _rotate(self) -> None:
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_full():  # another process has renamed it meanwhile
                return
            for number in range(self.kept, 0, -1):
                older = f"{self.path}.{number - 1}" if number > 1 else str(self.path)
                if os.path.exists(older):
                    os.replace(older, f"{self.path}.{number}")
        finally:
            os.close(lock)
