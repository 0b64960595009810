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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agl_programs.sandbox.settings import SandboxSection

INTERVAL = 0.05
"""Seconds between two looks."""
MEMORY, CPU, PROCESSES, DISK, SECONDS = "memory", "cpu", "processes", "disk", "seconds"
_TRIES = 3
"""Scans of a folder in which something is closed meanwhile."""
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
    found, folders = Used(), _processes(process)
    for folder in folders:
        try:
            status = _status(folder)
        except OSError:
            continue
        found.seconds += sum(map(int, status[11:15])) / _TICKS
        found.processes += int(status[17])  # threads
        found.memory += int(status[21]) * _PAGE
    if found.memory > enough:
        found.memory = sum(map(_share, folders))
    return found


def _processes(process: int) -> list[Path]:
    """The folders in ``/proc`` of all processes of a sandbox, by its first."""
    folder = Path(f"/proc/{process}/root/proc")
    try:
        return [folder / name for name in os.listdir(folder) if name.isdigit()]
    except OSError:  # it has ended
        return []


def _share(process: Path) -> int:
    """Bytes of memory of one process, in which a page of n processes counts as one nth."""
    try:
        lines = (process / "smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss:", "SwapPss:")))


def size_of(folders: Sequence[Path], enough: int, files: int) -> int:
    """Return the bytes of folders on disk; counting stops above ``enough``. What cannot be counted (more than
    ``files`` entries, a path too long, a folder that is closed again and again) counts as too much.
    """
    places = [os.path.realpath(folder) for folder in folders]
    for _ in range(_TRIES):
        closed: list[tuple[str, int]] = []
        try:
            return _size_of(places, enough, files, closed)
        except PermissionError:
            continue  # one was closed meanwhile
        finally:
            for path, mode in reversed(closed):  # an outer one closes the way to those in it
                with contextlib.suppress(OSError):
                    _change_mode(path, partial(_closed_again, mode))
    return enough + 1


def _size_of(open_folders: Sequence[str], enough: int, files: int, closed: list[tuple[str, int]]) -> int:
    """``closed``: gets the folders that were opened for counting, with their modes. Raise ``PermissionError``
    for one that is closed for all that.
    """
    total, entries, waiting, opened = 0, 0, list(open_folders), set[str]()
    while waiting and total <= enough:
        path, size, inner = waiting.pop(), 0, []
        try:
            with os.scandir(path) as found:
                for entry in found:
                    entries += 1
                    about = entry.stat(follow_symlinks=False)
                    size += about.st_blocks * 512
                    if stat.S_ISDIR(about.st_mode):
                        inner.append(entry.path)
        except FileNotFoundError:
            pass  # removed meanwhile
        except PermissionError:  # only where this process is not root
            if path in opened:
                raise
            opened.add(path)
            closed.append((path, _change_mode(path, lambda mode: mode | stat.S_IRWXU)))
            size, inner = 0, [path]
        except OSError:
            return enough + 1
        total += size
        waiting += inner
        if entries > files:
            return enough + 1
    return total


def _change_mode(path: str, wanted: Callable[[int], int]) -> int:
    """Give a folder the mode that is ``wanted`` after its own, and return that. Raise ``PermissionError`` if
    it is no folder any more, or a link leads to it: what a command may exchange leads nowhere.
    """
    try:
        file = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise PermissionError(f"{path} was exchanged or closed: {error}") from None
    try:
        if os.readlink(itself := f"/proc/self/fd/{file}") != path:
            raise PermissionError(f"{path} was exchanged")
        mode = stat.S_IMODE(os.fstat(file).st_mode)
        os.chmod(itself, wanted(mode))
        return mode
    finally:
        os.close(file)


def _closed_again(mode: int, now: int) -> int:
    """The mode that it had, unless its owner has given it another since."""
    return mode if now == mode | stat.S_IRWXU else now


def nameless(process: int, device: int, enough: int) -> int:
    """Return the bytes of files of a file system that have no name any more, and that a process of a sandbox
    has open: no folder shows them. ``process``: the sandbox's first. Counting stops above ``enough``; a
    process that may not be looked into counts as too much.
    """
    total, seen = 0, set[int]()
    for folder in map(_with_files, _processes(process)):
        try:
            names = os.listdir(folder / "fd")
        except PermissionError:
            if _has_memory(folder):
                return enough + 1
            continue
        except OSError:  # it has ended
            continue
        for name in names:
            with contextlib.suppress(OSError):
                about = os.stat(folder / "fd" / name)
                if about.st_nlink == 0 and about.st_dev == device and about.st_ino not in seen:
                    seen.add(about.st_ino)
                    total += about.st_blocks * 512
        if total > enough:
            break
    return total


def _with_files(process: Path) -> Path:
    """The process, or a thread of it where its first thread has ended, and shows no files any more."""
    if not _has_memory(process):
        with contextlib.suppress(OSError):
            threads = (process / "task" / name for name in os.listdir(process / "task"))
            return next(filter(_has_memory, threads), process)
    return process


def _has_memory(process: Path) -> bool:
    """Whether it runs: one that is ending has none, and belongs to root."""
    try:
        return int(_status(process)[20]) > 0
    except OSError:
        return False


def _status(process: Path) -> list[str]:
    """The fields of its ``stat`` after its name."""
    return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


class Watch:
    """Compares a sandbox with its limits. ``process``: its first process, as this machine numbers it; 0: none
    is known. ``tmp``: the folder of its ``/tmp``, if that is not memory. ``given``: bytes of its standard
    input, which is a file without a name, and not the command's.
    """

    def __init__(
        self, section: SandboxSection, process: int, folder: Path, tmp: Path | None = None, given: int = 0
    ) -> None:
        self.section, self.process = section, process
        self._folders = [folder] if tmp is None else [folder, tmp]
        self._memory = ("tmp", "dev/shm") if tmp is None else ("dev/shm",)
        self._given = given
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
        """Whether there are too many files in memory: its bytes are limited, its files are not."""
        for path in self._memory:
            with contextlib.suppress(OSError):
                found = os.statvfs(f"/proc/{self.process}/root/{path}")
                if found.f_files - found.f_ffree > self.section.files:
                    return DISK
        return None

    def over_disk(self, *, last: bool = False) -> str | None:
        """Whether the folders are too large, with what is open and has no name. Large folders are looked at
        less often. ``last``: now.
        """
        began = time.monotonic()
        if not last and began < self._next_folder:
            return None
        most = int(self.section.disk)
        size = size_of(self._folders, most, self.section.files)
        if size <= most:
            device = os.stat(self._folders[0]).st_dev
            size += max(0, nameless(self.process, device, most + self._given) - self._given)
        self._next_folder = time.monotonic() + 4 * (time.monotonic() - began)
        return DISK if size > most else None
