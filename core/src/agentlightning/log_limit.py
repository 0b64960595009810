"""An error that repeats with every request, such as a full disk, is logged once a minute, as one line.

A server under load meets such an error thousands of times a second. One filter is on the loggers that would
repeat it: ours that :func:`limited` makes, for everything; asyncio's and aiohttp's, where a server has called
:func:`limit_libraries`, for lack of resources.

Invariant: the first record of a kind is logged; each later one is logged, or counted in the next that is.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from agentlightning.types.base import UsageError

INTERVAL: Final = 60.0
"""Seconds between two records of one kind."""
RESOURCE_ERRORS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.ENOBUFS}
)
"""Errors of a machine that has run out of a resource: their traceback tells nothing more."""
LIBRARY_LOGGERS: Final = ("asyncio", "aiohttp.server")
"""Loggers of libraries; only their records about :data:`RESOURCE_ERRORS` are limited."""


class LimitRepeats(logging.Filter):
    """Passes one record of a kind every ``seconds``; a kind is logger, first line and type of error."""

    def __init__(self, seconds: float = INTERVAL, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self._logged: dict[tuple[object, ...], float] = {}
        self._held_back: Counter[tuple[object, ...]] = Counter()

    def forget(self) -> None:
        """Log the next record of each kind."""
        self._logged.clear()
        self._held_back.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged. It may be shortened."""
        error = record.exc_info[1] if record.exc_info else None
        resource_error = isinstance(error, OSError) and error.errno in RESOURCE_ERRORS
        if record.name in LIBRARY_LOGGERS and not resource_error:
            return True
        kind = record.name, str(record.msg).partition("\n")[0], type(error), getattr(error, "errno", None)
        now = self._clock()
        if now - self._logged.get(kind, -self._seconds) < self._seconds:
            self._held_back[kind] += 1
            return False
        self._logged[kind] = now
        message = record.getMessage()
        if resource_error or isinstance(error, UsageError):
            message = f"{message.partition(chr(10))[0]}: {error}"
            record.exc_info = record.exc_text = None
        if held_back := self._held_back.pop(kind, 0):
            message = f"{message} ({held_back} more like this since the last one)"
        record.msg, record.args = message, None
        return True


LIMIT: Final = LimitRepeats()


def limited(name: str) -> logging.Logger:
    """Return the logger ``name``, whose repeated records are counted instead of logged."""
    logger = logging.getLogger(name)
    logger.addFilter(LIMIT)
    return logger


def limit_libraries() -> None:
    """Limit what the libraries of this process's servers repeat. Idempotent."""
    for name in LIBRARY_LOGGERS:
        logging.getLogger(name).addFilter(LIMIT)
