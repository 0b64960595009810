"""Faults that repeat are logged once in a while, as one line; nothing is lost without a count."""

from __future__ import annotations

import errno
import logging
import socket
import subprocess
import sys
from pathlib import Path

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


SERVER = """
import asyncio, resource, sys
from agl_cluster.store.server import start

async def main():
    served = await start(sys.argv[1], port=0)
    print(served.url.rpartition(":")[2], flush=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, hard))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await served.close()

asyncio.run(main())
"""


def test_a_server_without_file_descriptors_says_so_in_a_line(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path / "s.sqlite")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None and server.stderr is not None
    port = int(server.stdout.readline())
    connections = [socket.create_connection(("127.0.0.1", port), 10.0) for _ in range(60)]
    first = server.stderr.readline()
    for connection in connections:
        connection.close()
    _, rest = server.communicate("\n", timeout=300)
    assert "out of system resource" in first and "Too many open files" in first
    assert len(rest) < 2_000, rest[:2_000]
