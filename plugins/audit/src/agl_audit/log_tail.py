"""Reads a log file: its last lines, and what is written later, across rotations."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

from agentlightning.types.base import Model

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (\S+) (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)", re.S)
PAUSE = 0.2
"""Seconds between two looks at a file that is followed."""


class LogLine(Model):
    """One entry of a log; ``text`` has all its lines. ``run`` is empty for what no run wrote."""

    time: str = ""
    run: str = ""
    level: str = ""
    text: str = ""


def parse(entry: str) -> LogLine:
    """Return an entry as its parts; a line of another form is a text."""
    found = _LINE.fullmatch(entry)
    return (
        LogLine(time=found[1], run=found[2], level=found[3], text=found[4]) if found else LogLine(text=entry)
    )


def last_entries(path: Path, count: int) -> list[str]:
    """Return the last ``count`` entries, which may reach back into the rotated file before."""
    older = path.with_name(f"{path.name}.1")
    kept: deque[str] = deque(maxlen=max(count, 1))
    for file in (older, path):
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as lines:
                for entry in entries(lines):
                    kept.append(entry)
    return list(kept)[-count:] if count else []


def entries(lines: Iterable[str]) -> Iterator[str]:
    """Join the indented lines of an entry with its first."""
    entry: list[str] = []
    for line in lines:
        if entry and not line.startswith("    "):
            yield "\n".join(entry)
            entry = []
        entry.append(line.rstrip("\n"))
    if entry:
        yield "\n".join(entry)


def follow(path: Path, sleep: Callable[[float], None] = time.sleep) -> Generator[str, None, None]:
    """Yield the lines that are appended from now on, and those of the file that takes the name later. Never
    ends. ``sleep`` waits between two looks.
    """
    file = path.open(encoding="utf-8", errors="replace") if path.is_file() else None
    if file is not None:
        file.seek(0, os.SEEK_END)
    rest = ""
    try:
        while True:
            # Asked before the file is read to its end: what was written before the rename is not missed.
            renamed = file is not None and not _same(path, file.fileno())
            if file is not None:
                *whole, rest = (rest + file.read()).split("\n")
                yield from whole
            if path.is_file() and (file is None or renamed):
                if file is not None:
                    file.close()
                file = path.open(encoding="utf-8", errors="replace")
                continue
            sleep(PAUSE)
    finally:
        if file is not None:
            file.close()


def _same(path: Path, opened: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return True  # renamed a moment ago; its successor is not there yet
