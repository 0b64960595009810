"""What the processes of a sandbox use together, read from outside.

The kernel limits each process (:func:`.bubblewrap.limits`), and without a control group nothing limits their
sum. So the sum is read twenty times a second, and the sandbox is ended when it is over a limit. What is used
between two looks is not seen in time: it is bounded by what a machine does in a twentieth of a second. The
processes are those of the sandbox's own ``/proc``, so none is missed that left its parent or its session.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from agl_programs.sandbox.settings import SandboxSection

INTERVAL = 0.05
"""Seconds between two looks."""
MEMORY, CPU, PROCESSES, DISK, SECONDS = "memory", "cpu", "processes", "disk", "seconds"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Used:
    """What all processes of a sandbox use. ``seconds``: processor time, also of those that ended and were
    waited for.
    """

    memory: int = 0
    seconds: float = 0.0
    processes: int = 0


def used(process: int, enough: int) -> Used:
    """Return what the sandbox uses whose first process has this number. ``enough``: up to so much memory the
    sum may count pages that are shared twice; a larger one is counted exactly.
    """
    found, folder = Used(), Path(f"/proc/{process}/root/proc")
    try:
        numbers = [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:  # it has ended
        return found
    for number in numbers:
        try:
            told = (folder / number / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        status = told.rpartition(")")[2].split()
        found.seconds += sum(map(int, status[11:15])) / _TICKS
        found.processes += int(status[17])  # threads
        found.memory += int(status[21]) * _PAGE
    if found.memory > enough:
        found.memory = sum(_share(folder / number) for number in numbers)
    return found


def _share(process: Path) -> int:
    """Bytes of memory of one process, in which a page of n processes counts as one nth."""
    try:
        lines = (process / "smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss:", "SwapPss:")))


def size_of(folder: Path, enough: int, files: int) -> int:
    """Return the bytes of a folder on disk; counting stops above ``enough``. What cannot be counted (more
    than ``files`` entries, a path too long) counts as too much.
    """
    total, entries, open_folders = 0, 0, [str(folder)]
    while open_folders and total <= enough:
        try:
            with os.scandir(open_folders.pop()) as found:
                for entry in found:
                    entries += 1
                    about = entry.stat(follow_symlinks=False)
                    total += about.st_blocks * 512
                    if stat.S_ISDIR(about.st_mode):
                        open_folders.append(entry.path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except PermissionError:
            continue  # a folder of mode 0: what is in it was counted before, or is counted afterwards
        except OSError:
            return enough + 1
        if entries > files:
            return enough + 1
    return total


class Watch:
    """Compares a sandbox with its limits. ``process``: its first process, as this machine numbers it."""

    def __init__(self, section: SandboxSection, process: int, folder: Path) -> None:
        self.section, self.process, self.folder = section, process, folder
        self.cpu_seconds = 0.0
        self.peak = 0
        self._next_folder = 0.0

    def over(self) -> str | None:
        """Return the limit that is passed, by its name."""
        limits = self.section
        now = used(self.process, int(limits.memory))
        self.cpu_seconds, self.peak = max(self.cpu_seconds, now.seconds), max(self.peak, now.memory)
        if now.memory > limits.memory:
            return MEMORY
        if limits.cpu_seconds is not None and now.seconds > limits.cpu_seconds:
            return CPU
        if now.processes > limits.processes + 1:  # the init of its namespace
            return PROCESSES
        return self.over_memory_files() or self.over_disk()

    def over_memory_files(self) -> str | None:
        """Whether there are too many files in the memory of ``/tmp``: its bytes are limited, its files are
        not.
        """
        for path in ("tmp", "dev/shm"):
            with contextlib.suppress(OSError):
                found = os.statvfs(f"/proc/{self.process}/root/{path}")
                if found.f_files - found.f_ffree > self.section.files:
                    return DISK
        return None

    def over_disk(self, *, last: bool = False) -> str | None:
        """Whether the folder is too large. Large folders are looked at less often. ``last``: now."""
        began = time.monotonic()
        if not last and began < self._next_folder:
            return None
        size = size_of(self.folder, int(self.section.disk), self.section.files)
        self._next_folder = time.monotonic() + 4 * (time.monotonic() - began)
        return DISK if size > self.section.disk else None
