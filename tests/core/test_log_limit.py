"""Faults that repeat are logged once in a while, as one line; nothing is lost without a count."""

from __future__ import annotations

import errno
import logging

import pytest

from agentlightning.log_limit import LIBRARY_LOGGERS, LIMIT, LimitRepeats, limit_libraries, limited
from agentlightning.store import StoreError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def logger(name: str, clock: Clock, kept: Kept) -> logging.Logger:
    made = logging.Logger(name)
    made.addFilter(LimitRepeats(60.0, clock))
    made.addHandler(kept)
    return made


def fail(log: logging.Logger, error: Exception, number: int) -> None:
    try:
        raise error
    except Exception:
        log.exception("attempt %d: not stored", number)


def test_a_fault_that_repeats_is_one_line_a_minute_with_a_count(clock: Clock) -> None:
    kept = Kept()
    log = logger("agentlightning.some.room", clock, kept)
    for number in range(1000):
        fail(log, StoreError("database or disk is full"), number)
    assert kept.lines == ["attempt 0: not stored: database or disk is full"]
    clock.now = 61.0
    fail(log, StoreError("database or disk is full"), 7)
    assert kept.lines[1:] == [
        "attempt 7: not stored: database or disk is full (999 more like this since the last one)"
    ]


def test_another_fault_is_logged_at_once_and_a_bug_keeps_its_traceback(clock: Clock) -> None:
    kept = Kept()
    log = logger("agentlightning.some.room", clock, kept)
    fail(log, StoreError("full"), 1)
    fail(log, ZeroDivisionError("ours"), 2)
    assert len(kept.lines) == 2 and "Traceback" not in kept.lines[0] and "Traceback" in kept.lines[1]


def test_of_others_only_lack_of_resources_is_limited(clock: Clock) -> None:
    kept = Kept()
    log = logger(LIBRARY_LOGGERS[0], clock, kept)
    for number in range(3):
        fail(log, ValueError("theirs"), number)
    assert len(kept.lines) == 3
    for number in range(3):
        fail(log, OSError(errno.EMFILE, "Too many open files"), number)
    assert kept.lines[3:] == ["attempt 0: not stored: [Errno 24] Too many open files"]


def test_each_logger_has_the_filter_once() -> None:
    for _ in range(2):
        limit_libraries()
        assert limited("agentlightning.test_of_limits").filters == [LIMIT]
    assert all(logging.getLogger(name).filters == [LIMIT] for name in LIBRARY_LOGGERS)
