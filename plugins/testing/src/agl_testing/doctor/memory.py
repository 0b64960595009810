"""Resident memory of this process and its children (the engine), and its growth."""

from __future__ import annotations

from typing import NamedTuple

import psutil


class MemoryUsage(NamedTuple):
    """Resident bytes at a moment."""

    moment: str
    trainer: int
    children: int


def measure(moment: str) -> MemoryUsage:
    """Measure resident memory now."""
    me = psutil.Process()
    return MemoryUsage(moment, _resident(me), sum(map(_resident, me.children(recursive=True))))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # ended meanwhile
        return 0
